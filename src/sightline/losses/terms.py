"""The terms of a loss that adds up others, each under its own name, for the log of a run.

Such a loss keeps in ``terms`` what each of them was at the last call: not weighted, without a graph. That is no state: no
``state_dict`` has it, and it is empty before the first call.
"""

from torch import Tensor


def terms_of(loss: object) -> dict[str, Tensor]:
    """What a loss tells of its last call; nothing where it adds up no others."""
    terms: dict[str, Tensor] = getattr(loss, "terms", {})
    return terms


def named_terms(name: str, loss: object, value: Tensor) -> dict[str, Tensor]:
    """What to tell of one term that was just computed: its value, or where it is a sum itself those of its own terms.

    Example:
        >>> import torch
        >>> named_terms("sup_ap", None, torch.tensor(0.25))
        {'sup_ap': tensor(0.2500)}
    """
    return {f"{name}/{part}": one for part, one in terms_of(loss).items()} or {name: value.detach()}
