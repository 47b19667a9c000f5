"""The loss as a step of training calls it: on a batch and, where asked for, on earlier embeddings; its state in buffers."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.state import fit_buffers, identify_batch, keeps_batches
from sightline.losses.sums import named_terms, takes_references, terms_of
from sightline.training.recipe import Recipe

PROXY_STEP = 0.1  # of the way to a batch's mean; the last ten batches of a class make its proxy


class CrossBatchMemory(nn.Module):
    """The last embeddings that training made, with their labels and which images they are of.

    A list of fixed length that the newest items enter at the expense of the oldest (XBM). An image is in it once: what is
    pushed replaces its older copy. :meth:`references` leaves out the images of a batch, so that no item meets its own older
    copy; those of the batch meet each other in the loss of the batch itself.

    Args:
        size: items it holds at most.
        dim: length of an embedding.
        n_levels: label levels.

    Example:
        >>> memory = CrossBatchMemory(size=3, dim=2, n_levels=1)
        >>> memory.push(torch.eye(2), torch.tensor([[5], [6]]), torch.tensor([10, 11]))
        >>> memory.push(torch.ones(2, 2), torch.tensor([[5], [7]]), torch.tensor([10, 12]))
        >>> memory.references(torch.tensor([12]))[1].flatten().tolist()
        [6, 5]
    """

    rows: Tensor
    labels: Tensor
    ids: Tensor

    def __init__(self, size: int, dim: int, n_levels: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("rows", torch.zeros(0, dim))
        self.register_buffer("labels", torch.zeros(0, n_levels, dtype=torch.int64))
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(fit_buffers)  # type: ignore[no-untyped-call]

    def push(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> None:
        """Let the items in, newest last, and the oldest out."""
        older, newest = ~torch.isin(self.ids, ids), _last_of_each(ids)
        table = labels if labels.ndim == 2 else labels[:, None]
        self.rows = torch.cat([self.rows[older], embeddings.detach().to(self.rows)[newest]])[-self.size :].clone()
        self.labels = torch.cat([self.labels[older], table[newest]])[-self.size :].clone()
        self.ids = torch.cat([self.ids[older], ids[newest]])[-self.size :].clone()

    def references(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of what it holds, without the images of these ids."""
        others = ~torch.isin(self.ids, ids)
        return self.rows[others], self.labels[others]


def _last_of_each(ids: Tensor) -> Tensor:
    """Where each id stands last, in order.

    Example:
        >>> _last_of_each(torch.tensor([7, 5, 7, 9]))
        tensor([1, 2, 3])
    """
    unique, inverse = ids.unique(return_inverse=True)
    places = torch.arange(len(ids), device=ids.device)
    return torch.zeros_like(unique).scatter_reduce(0, inverse, places, "amax").sort().values


class BatchLoss(nn.Module):
    """A loss as the loop calls it, on (embeddings, labels, ids) of the whole batch; a memory goes by the ids.

    With a memory it is, from some step on, a loss on the batch and one against the memory, which fills from the
    first step on. Joined, it is one loss: each item of the batch ranks the rest of the batch and all the memory's other
    images in one list; those of the batch carry a gradient, as queries and as items.

    Args:
        loss: takes a reference set, where there is a memory.
        memory: what is kept; None for none.
        start: the step from which the memory counts.
        share: of the loss against the memory, in [0, 1].
        joined: rank batch and memory as one list.
        followers: proxies of the loss that a running mean moves, not the optimizer; each has a row for each finest class.

    Attributes:
        terms: what the loss tells of its last call; with a memory ``batch`` and, once it counts, ``memory``: see
            :mod:`sightline.losses.sums`.
    """

    n_steps: Tensor

    def __init__(
        self,
        loss: nn.Module,
        memory: CrossBatchMemory | None = None,
        start: int = 0,
        share: float = 0.5,
        joined: bool = False,
        followers: Sequence[nn.Parameter] = (),
    ) -> None:
        super().__init__()
        self.loss, self.memory, self.start, self.share, self.joined = loss, memory, start, share, joined
        self.followers = [proxies.requires_grad_(False) for proxies in followers]
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64), persistent=memory is not None)
        self.terms: dict[str, Tensor] = {}

    def forward(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        identify_batch(self.loss, ids)
        value = self._value(embeddings, labels, ids)
        if self.training:
            self.move_proxies(embeddings, labels)
        return value

    @torch.no_grad()
    def move_proxies(self, embeddings: Tensor, labels: Tensor, step: float = PROXY_STEP) -> None:
        """Move the proxies of the classes that are there that share of the way to the mean of their embeddings."""
        classes, places = (labels if labels.ndim == 1 else labels[:, 0]).unique(return_inverse=True)
        for proxies in self.followers:
            sums = proxies.new_zeros(len(classes), proxies.shape[1])
            sums.index_add_(0, places, F.normalize(embeddings.detach().to(proxies)))
            proxies[classes] = torch.lerp(F.normalize(proxies[classes]), F.normalize(sums), step)

    def _value(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        if self.memory is None:
            value: Tensor = self.loss(embeddings, labels)
            self.terms = terms_of(self.loss)
            return value
        references, ref_labels = self.memory.references(ids)
        references, ref_labels = references.to(embeddings), ref_labels if labels.ndim == 2 else ref_labels[:, 0]
        if self.joined:
            both = {"ref_emb": torch.cat([embeddings, references]), "ref_labels": torch.cat([labels, ref_labels])}
            value = self.loss(embeddings, labels, **both)
            self.terms = terms_of(self.loss)
        else:
            value = self._weighted(embeddings, labels, references, ref_labels)
        if self.training:
            self.memory.push(embeddings, labels, ids)
            self.n_steps = self.n_steps + 1
        return value

    def _weighted(self, embeddings: Tensor, labels: Tensor, references: Tensor, ref_labels: Tensor) -> Tensor:
        value: Tensor = self.loss(embeddings, labels)
        self.terms = named_terms("batch", self.loss, value)
        if int(self.n_steps) >= self.start and len(references):
            against: Tensor = self.loss(embeddings, labels, ref_emb=references, ref_labels=ref_labels)
            self.terms |= named_terms("memory", self.loss, against)
            value = (1 - self.share) * value + self.share * against
        return value


def add_memory(loss: nn.Module, recipe: Recipe, n_images: int, shape: tuple[int, int], n_batches: int) -> BatchLoss:
    """The loss with the memory that the recipe asks for; refused where the loss cannot use one.

    Args:
        loss: the recipe's.
        recipe: the whole run.
        n_images: to train on.
        shape: dimensions of an embedding, and label levels.
        n_batches: of an epoch.
    """
    section, name, joined = recipe.memory, recipe.loss.name, recipe.loss.reference == "train"
    followers = _following_proxies(loss, name) if recipe.loss.proxies == "means" else ()
    if joined and section.size is not None:
        raise InputError("memory.size and loss.reference='train' are two memories; leave out one")
    size = "all" if joined else section.size
    if size is None:
        return BatchLoss(loss, followers=followers)
    key = "loss.reference" if joined else "memory.size"
    if not takes_references(loss):
        raise InputError(f"{key}: loss {name!r} takes no reference set, so earlier embeddings are of no use to it")
    if keeps_batches(loss):
        raise InputError(f"{key}: loss {name!r} keeps earlier batches itself; leave it out, or set the loss's own to 0")
    memory = CrossBatchMemory(n_images if size == "all" else size, *shape)
    return BatchLoss(loss, memory, section.start_epoch * n_batches, section.share, joined, followers)


def _following_proxies(loss: nn.Module, name: str) -> list[nn.Parameter]:
    """The proxies of a loss's terms; refused where there are none, or where they are not those of the finest classes."""
    found = [weight for path, weight in loss.named_parameters() if path.split(".")[-1] == "proxies"]
    if not found or any(isinstance(part, nn.ModuleList) for part in loss.modules()):
        raise InputError(f"loss.proxies='means': loss {name!r} has no proxies of the finest classes to move")
    return found
