"""``sightline embed``, ``sightline whiten`` and ``sightline export``: use an encoder, and take it elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import ENCODER, Backend, Trust, echo, read_encoder, read_images
from sightline.errors import InputError

export = typer.Typer(no_args_is_help=True, help="Export an encoder: model card, ONNX, hub.")
EncoderFolder = Annotated[Path, typer.Argument(help="Encoder folder, or a run folder that has one.")]


def embed(
    encoder: Annotated[Path, typer.Argument(help=f"What embeds: {ENCODER}.")],
    source: Annotated[Path, typer.Argument(help="A .csv or .parquet manifest, or a folder of images.")],
    out: Annotated[Path, typer.Option(help="Embedding table to write (.parquet).")],
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    codes: Annotated[
        str | None, typer.Option(help="Column of several codes an image, to check and store as lists.")
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(help="Embed whole images, at their aspect: their longer side in pixels at most; default: a square."),
    ] = None,
    scale: Annotated[
        list[float] | None, typer.Option(help="With --longest: a scale; repeatable, vectors are averaged; default: 1.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in one pass.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images; 0: threads.")] = 0,
    scorer_inputs: Annotated[
        bool,
        typer.Option(
            "--scorer-inputs", help="Also store features and deviations of feature maps, for `ood fit --scorer heat`."
        ),
    ] = False,
    backend: Backend = "auto",
    trust: Trust = False,
) -> None:
    """Embed every image and write vectors, ids and labels to one file; under torchrun, one file a process."""
    from sightline.data.manifest import read_manifest
    from sightline.files import check_file
    from sightline.labels.code_column import read_codes
    from sightline.models.embed import embed_manifest, own_part
    from sightline.models.own_size import OwnSize, embed_at_own_size

    manifest = read_manifest(source, labelled=False)
    manifest = manifest if codes is None else read_codes(manifest, codes)
    manifest, out = own_part(manifest if split is None else manifest.split(split), out)
    check_file(out)
    if longest is None and scale is not None:
        raise InputError("--scale is for images at their own size; add --longest")
    size = None if longest is None else OwnSize(longest, tuple(scale or (1.0,)))
    if size is not None and scorer_inputs:
        raise InputError("--scorer-inputs are of squares; leave out --longest")
    if size is not None and backend not in ("auto", "torch"):
        raise InputError(f"--longest computes with torch; leave out --backend {backend}")
    model = read_encoder(encoder, trust, backend)
    if size is None:
        table = embed_manifest(model, manifest, batch_size, workers, show_progress=True, scorer_inputs=scorer_inputs)
    else:
        table = embed_at_own_size(model, manifest, size, batch_size, show_progress=True)
    further = "".join(f", {kind} of {rows.shape[1]}" for kind, rows in table.inputs.items())
    echo(f"{table.write(out)}: {len(table)} vectors of {table.vectors.shape[1]}{further}")


def whiten(
    encoder: Annotated[Path, typer.Argument(help=f"What to whiten: {ENCODER}.")],
    source: Annotated[Path, typer.Argument(help="Training images: a table by `sightline embed`, a manifest or a folder.")],
    out: Annotated[Path, typer.Option(help="Encoder folder to write, or a .safetensors file for the whitening alone.")],
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Dimensions to keep; default: all that vary.")] = None,
    power: Annotated[float, typer.Option(help="0 rotates, 0.5 makes all variances 1.")] = 0.25,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images; 0: threads.")] = 0,
    backend: Backend = "auto",
    trust: Trust = False,
) -> None:
    """Fit a PCA whitening on an encoder's vectors and write the encoder that applies it."""
    import torch

    from sightline.data.manifest import Manifest
    from sightline.models.embed import embed_manifest
    from sightline.models.heads import Whitening
    from sightline.models.own_size import is_of_encoder

    plain = read_encoder(encoder, trust, backend)
    table = read_images(source, split)
    if isinstance(table, Manifest):
        table = embed_manifest(plain, table, n_workers=workers, show_progress=True)
    is_alone = out.suffix == ".safetensors"
    if table.fingerprint != plain.fingerprint() and not (is_alone and is_of_encoder(table.fingerprint, plain)):
        raise InputError(f"{source}: vectors must be of this encoder, {plain.fingerprint()}, got {table.fingerprint}")
    whitening = Whitening.fit(torch.from_numpy(table.vectors), dim, power)
    whitened = plain.whitened(whitening)
    written = whitening.save(out) if is_alone else whitened.save_pretrained(out)
    n_kept, n_given = whitening.weight.shape
    echo(f"{written}: fitted on {len(table)} vectors, {n_given} dimensions to {n_kept}, power {power:g}")


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Of NAVER's deep-image-retrieval, ROADMAP, HAPPIER or SupRank.")],
    out: Annotated[Path, typer.Option(help="Encoder folder to write.")],
    feature_norm: Annotated[
        str | None, typer.Option(help="Before the projection: layer, l2 or none; default: as the checkpoint says.")
    ] = None,
    pooling: Annotated[str | None, typer.Option(help="Default: as the checkpoint says.")] = None,
    image_size: Annotated[int, typer.Option(min=1, help="Side of the images it sees.")] = 224,
    resize: Annotated[int, typer.Option(min=1, help="Length of their shorter side before the cut.")] = 256,
    power: Annotated[float, typer.Option(help="Of the whitening in NAVER's checkpoints.")] = 0.25,
) -> None:
    """Convert a published checkpoint to an encoder; nothing in the file is run."""
    from sightline.models.released import convert_checkpoint

    encoder = convert_checkpoint(checkpoint, feature_norm, pooling, image_size, resize, power)
    written = encoder.save_pretrained(out)
    settings = encoder.settings
    norm = f"{settings.feature_norm} norm, " * (settings.feature_norm != "none")
    white = ", whitened" * (settings.whitening_dim is not None)
    echo(f"{written}: {settings.backbone}, {settings.pooling}, {norm}{encoder.dim} dimensions{white}")


@export.command()
def onnx(
    encoder: EncoderFolder,
    out: Annotated[Path, typer.Option(help="File to write (.onnx).")] = Path("model.onnx"),
    trust: Trust = False,
) -> None:
    """Write an encoder as one ONNX file, its preprocessing described inside."""
    from sightline.models.inference import OPSET
    from sightline.models.onnx_export import export_onnx

    loaded = read_encoder(_encoder_in(encoder), trust)
    written = export_onnx(loaded, out)
    echo(f"{written}: {written.stat().st_size / 1e6:.1f} MB, opset {OPSET}, {loaded.dim} dimensions")


@export.command()
def card(
    encoder: EncoderFolder,
    result: Annotated[
        Path | None, typer.Option(help="Metrics to put on the card, written by `sightline evaluate --json`.")
    ] = None,
    on: Annotated[str, typer.Option(help="With --result: describe the images.")] = "test images",
    licence: Annotated[str | None, typer.Option("--license", help="License of the weights, such as apache-2.0.")] = None,
    notes: Annotated[Path | None, typer.Option(help="Markdown file to add to the card.")] = None,
    trust: Trust = False,
) -> None:
    """Write the model card of an encoder again, with a result, a license or notes."""
    from sightline.data.readers.source import read_text
    from sightline.evaluation.result import Result
    from sightline.models.card import write_card
    from sightline.training.account import evaluation_facts

    folder = _encoder_in(encoder)
    described = read_encoder(folder, trust).described(folder.resolve().name)
    changed: dict[str, object] = {
        "license": licence,
        "notes": None if notes is None else read_text(notes),
        "evaluation": None,
    }
    if result is not None:
        read = Result.read_json(result)
        if read.fingerprint not in (None, described.fingerprint):
            raise InputError(f"{result}: of another encoder, {read.fingerprint}, not {described.fingerprint}")
        changed["evaluation"] = evaluation_facts(read, on)
    update = {name: value for name, value in changed.items() if value is not None}
    echo(write_card(folder, described.model_copy(update=update)))


@export.command()
def hub(
    encoder: EncoderFolder,
    name: Annotated[str, typer.Argument(help="owner/name on the hub; created if missing.")],
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Visibility of a model that is created.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch; default: main.")] = None,
    trust: Trust = False,
) -> None:
    """Upload an encoder with its card; HF_TOKEN is your token."""
    echo(read_encoder(_encoder_in(encoder), trust).push_to_hub(name, private, revision))


def _encoder_in(folder: Path) -> Path:
    """The folder itself, or the encoder of a run."""
    from sightline.models.encoder import SETTINGS_FILE
    from sightline.training.run_folder import RunFolder

    inside = RunFolder(folder).encoder
    return inside if not (folder / SETTINGS_FILE).is_file() and inside.is_dir() else folder
