"""The sigmoid and SupRank's step by their definitions, in Python's floats."""

import math


def sigmoid(gap, tau=0.01):
    return 1 / (1 + math.exp(-gap / tau)) if gap >= 0 else math.exp(gap / tau) / (1 + math.exp(gap / tau))


def h_minus(gap, tau=0.01, rho=100.0, delta=0.05):
    if gap < 0:
        return sigmoid(gap, tau)
    if gap <= delta:
        return sigmoid(gap, tau) + 0.5
    return rho * (gap - delta) + sigmoid(delta, tau) + 0.5


def sup_ap_of_list(yes, no, tau=0.01, rho=100.0, delta=0.05):
    """One minus the smooth AP of the relevant and the irrelevant scores of one list."""
    total = 0.0
    for k, score in enumerate(yes):
        rank_plus = 1 + sum(1 for j, other in enumerate(yes) if j != k and other >= score)
        total += rank_plus / (rank_plus + sum(h_minus(other - score, tau, rho, delta) for other in no))
    return 1 - total / len(yes)
