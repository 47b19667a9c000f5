"""Cars196: 196 models of cars and what kind of body each has; classes 1 to 98 are for training."""

import polars as pl

from sightline.data.readers.matlab import read_matlab
from sightline.data.readers.source import Draft, Part, Reader, Source, rows_of
from sightline.errors import InputError, raise_faults

BODIES = ("Cab", "Convertible", "Coupe", "Hatchback", "Minivan", "SUV", "Sedan", "Van", "Wagon")
BODY_OF = {  # of the models whose names do not say
    "Acura Integra Type R 2001": "Coupe",
    "Acura TL Type-S 2008": "Sedan",
    "Buick Regal GS 2012": "Sedan",
    "Chevrolet Cobalt SS 2010": "Coupe",
    "Chevrolet Corvette Ron Fellows Edition Z06 2007": "Coupe",
    "Chevrolet Corvette ZR1 2012": "Coupe",
    "Chevrolet HHR SS 2010": "Wagon",
    "Chevrolet TrailBlazer SS 2009": "SUV",
    "Chrysler 300 SRT-8 2010": "Sedan",
    "Dodge Challenger SRT8 2011": "Coupe",
    "Dodge Charger SRT-8 2009": "Sedan",
    "FIAT 500 Abarth 2012": "Hatchback",
    "Ford Ranger SuperCab 2011": "Cab",
    "Jaguar XK XKR 2012": "Coupe",
    "Lamborghini Gallardo LP 570-4 Superleggera 2012": "Coupe",
}


def body_of(model: str) -> str | None:
    """The kind of body that the model's name says last; None if it says none.

    Example:
        >>> body_of("Ram C/V Cargo Van Minivan 2012"), body_of("Jaguar XK XKR 2012"), body_of("Trabant 601")
        ('Minivan', 'Coupe', None)
    """
    said = [word for word in model.split() if word in BODIES]
    return BODY_OF.get(model) or (said[-1] if said else None)


def read_cars(source: Source) -> Draft:
    """``cars_annos.mat`` with ``annotations`` and ``class_names``, and the images in ``car_ims`` or its archive."""
    source = source.unpacked(["car_ims.tgz"], unless=["car_ims"])
    listed = source.file("cars_annos.mat")
    found = read_matlab(listed, "annotations", "class_names")
    try:
        models = [str(cell[0]) for cell in found["class_names"].ravel()]
        rows = found["annotations"].ravel()
        paths = [str(row["relative_im_path"].item()) for row in rows]
        classes = [int(row["class"].item()) for row in rows]
    except (ValueError, IndexError, TypeError) as error:
        needed = "'class_names' of text and 'annotations' with relative_im_path and class"
        raise InputError(f"{listed}: {needed} are needed: {error}") from error
    raise_faults(listed, [f"class {model!r}: its kind of body is not known" for model in models if body_of(model) is None])
    wrong = [
        f"class {number} of {path!r}: there are {len(models)}"
        for path, number in zip(paths, classes, strict=True)
        if not 1 <= number <= len(models)
    ]
    raise_faults(listed, wrong)
    base = source.folder("car_ims").parent
    half = len(models) // 2
    tables = []
    for split, is_in in (
        ("train", [number <= half for number in classes]),
        ("test", [number > half for number in classes]),
    ):
        kept = [(path, models[number - 1]) for path, number, chosen in zip(paths, classes, is_in, strict=True) if chosen]
        labels = [[model for _, model in kept], [str(body_of(model)) for _, model in kept]]
        tables.append(rows_of([f"{base}/{path}" for path, _ in kept], split, labels))
    return Draft(pl.concat(tables), {"train": listed, "test": listed})


CARS = Reader(
    about="196 models of cars < 9 kinds of body",
    needs="'cars_annos.mat', and 'car_ims.tgz' or the folder 'car_ims' from it",
    read=read_cars,
    counts={"train": Part(8054, (98,)), "test": Part(8131, (98,))},
)
