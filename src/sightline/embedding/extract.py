"""Run an encoder over a manifest into a table."""

from sightline.data.dataset import ImageDataset
from sightline.data.manifest import Manifest
from sightline.data.transforms import eval_transform
from sightline.embedding.table import EmbeddingTable
from sightline.models.encoder import Encoder


def embed_manifest(
    encoder: Encoder, manifest: Manifest, batch_size: int = 64, n_workers: int = 0, show_progress: bool = False
) -> EmbeddingTable:
    """A vector for each image of the manifest, in its order; one error names all images that cannot be read."""
    dataset = ImageDataset.of(manifest, eval_transform(encoder.settings.preprocessing))
    vectors = encoder.encode_dataset(dataset, batch_size, n_workers, show_progress)
    return EmbeddingTable(manifest, vectors, encoder.fingerprint())
