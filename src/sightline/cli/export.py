"""``sightline export``: an encoder for elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo

app = typer.Typer(no_args_is_help=True, help="Take an encoder elsewhere: model card, ONNX, hub.")
EncoderFolder = Annotated[Path, typer.Argument(help="Encoder folder, or a run folder that has one.")]


@app.command()
def onnx(
    encoder: EncoderFolder,
    out: Annotated[Path, typer.Option(help="File to write (.onnx).")] = Path("model.onnx"),
) -> None:
    """Write an encoder as one ONNX file, its preprocessing described inside."""
    from sightline.models.encoder import Encoder
    from sightline.models.onnx_export import OPSET, export_onnx

    loaded = Encoder.from_pretrained(_encoder_in(encoder))
    written = export_onnx(loaded, out)
    echo(f"{written}: {written.stat().st_size / 1e6:.1f} MB, opset {OPSET}, {loaded.dim} dimensions")


@app.command()
def card(
    encoder: EncoderFolder,
    result: Annotated[
        Path | None, typer.Option(help="Written by `sightline evaluate --json`: the metrics to tell.")
    ] = None,
    on: Annotated[str, typer.Option(help="With --result: which images it is of, in words.")] = "test images",
    licence: Annotated[str | None, typer.Option("--license", help="Of the weights, such as apache-2.0.")] = None,
    notes: Annotated[Path | None, typer.Option(help="Markdown file to add to the card.")] = None,
) -> None:
    """Write the model card beside an encoder again, with a result, a licence or notes put into it."""
    from sightline.data.readers.source import read_text
    from sightline.errors import InputError
    from sightline.evaluation.result import Result
    from sightline.models.card import write_card
    from sightline.models.encoder import Encoder
    from sightline.training.account import evaluation_facts

    folder = _encoder_in(encoder)
    loaded = Encoder.from_pretrained(folder)
    told = loaded.described(folder.resolve().name)
    changed: dict[str, object] = {}
    if result is not None:
        read = Result.read_json(result)
        if read.fingerprint is not None and read.fingerprint != told.fingerprint:
            raise InputError(f"{result}: of another encoder, {read.fingerprint}, not {told.fingerprint}")
        changed["evaluation"] = evaluation_facts(read, on)
    if licence is not None:
        changed["license"] = licence
    if notes is not None:
        changed["notes"] = read_text(notes)
    echo(write_card(folder, told.model_copy(update=changed)))


@app.command()
def hub(
    encoder: EncoderFolder,
    name: Annotated[str, typer.Argument(help="owner/name on the hub; made if there is none.")],
    private: Annotated[bool | None, typer.Option("--private/--public", help="Of a model that is made.")] = None,
    revision: Annotated[str | None, typer.Option(help="A branch; main if not given.")] = None,
) -> None:
    """Upload an encoder with its card; HF_TOKEN says who you are."""
    from sightline.models.encoder import Encoder

    echo(Encoder.from_pretrained(_encoder_in(encoder)).push_to_hub(name, private, revision))


def _encoder_in(folder: Path) -> Path:
    """The folder itself, or the encoder of a run."""
    from sightline.models.encoder import SETTINGS_FILE
    from sightline.training.run_folder import RunFolder

    inside = RunFolder(folder).encoder
    return inside if not (folder / SETTINGS_FILE).is_file() and inside.is_dir() else folder
