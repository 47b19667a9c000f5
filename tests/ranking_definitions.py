"""Every metric of one list by its definition, one place at a time: slow, and hard to get wrong."""

import math

NAN = math.nan


def ranked(scores, levels):
    """The levels of a list in ranked order: best score first, of equal ones the lower level; below 0 is in no list."""
    kept = [(-score, level) for score, level in zip(scores, levels, strict=True) if level >= 0]
    return [level for _, level in sorted(kept)]


def precision_sum(relevant, places):
    return sum(sum(relevant[:place]) / place for place in places if place <= len(relevant) and relevant[place - 1])


def binary_metrics(relevant, ks):
    n = sum(relevant)
    if not n:
        at_k = ("recall", "cmc", "true_recall", "classical_recall", "precision", "map")
        return dict.fromkeys(
            [*(f"{name}@{k}" for k in ks for name in at_k), "map", "map@r", "r_precision", "set_precision"], NAN
        )
    found = {
        "map": precision_sum(relevant, range(1, len(relevant) + 1)) / n,
        "map@r": precision_sum(relevant, range(1, n + 1)) / n,
        "r_precision": sum(relevant[:n]) / n,
        "set_precision": sum(sum(relevant[:place]) / place for place in range(1, n + 1)) / n,
    }
    for k in ks:
        hits = sum(relevant[:k])
        found[f"recall@{k}"] = found[f"cmc@{k}"] = float(hits > 0)
        found[f"true_recall@{k}"] = hits / min(k, n)
        found[f"classical_recall@{k}"] = hits / n
        found[f"precision@{k}"] = hits / k
        found[f"map@{k}"] = precision_sum(relevant, range(1, k + 1)) / min(k, n)
    return found


def worth_of_levels(levels, n_levels, name="population", alpha=1.0, weights=None, count_self=False, monotone=False):
    """The worth of each level 0..L."""
    worth = [0.0]
    for level in range(1, n_levels + 1):
        n = sum(item == level for item in levels) + (count_self and level == n_levels)
        if name == "weight":
            worth.append((level / n_levels) ** alpha)
        elif name == "population":
            worth.append((level / n_levels) ** alpha / max(n, 1))
        elif name == "exponential":
            worth.append(2.0**level - 1)
        else:
            shares = weights or [1 / n_levels] * n_levels
            worth.append(sum(shares[p - 1] / max(1, sum(item >= p for item in levels)) for p in range(1, level + 1)))
        if monotone:
            worth[-1] = max(worth[-2:])
    return worth


def h_ap(levels, worth):
    value = [worth[level] for level in levels]
    if not sum(value):
        return NAN
    terms = [
        sum(min(other, value[i]) for other in value[: i + 1]) / (i + 1) if value[i] > 0 else 0 for i in range(len(value))
    ]
    return sum(terms) / sum(value)


def ndcg(levels, gains, k=None):
    k = len(levels) if k is None else k
    values = [gains[level] for level in levels]
    gain = sum(value / math.log2(1 + place) for place, value in enumerate(values[:k], start=1))
    ideal = sum(value / math.log2(1 + place) for place, value in enumerate(sorted(values, reverse=True)[:k], start=1))
    return gain / ideal if ideal else NAN


def asi(levels):
    n = sum(level > 0 for level in levels)
    best = sorted(levels, reverse=True)
    shares = []
    for place in range(1, n + 1):
        kinds = set(levels[:place]) - {0}
        shares.append(sum(min(levels[:place].count(kind), best[:place].count(kind)) for kind in kinds) / place)
    return sum(shares) / n if n else NAN


def metrics_of_list(levels, n_levels, ks, relevant_level=None, **relevance):
    """All metrics by their names in a result."""
    finest = relevant_level or n_levels
    found = binary_metrics([level >= finest for level in levels], ks)
    for label in range(1, finest):
        coarser = binary_metrics([level >= finest - label for level in levels], ks)
        found |= {f"{name}_label_{label}": value for name, value in coarser.items()}
    found["h_ap"] = h_ap(levels, worth_of_levels(levels, n_levels, **relevance))
    found["weighted_ap"] = h_ap(levels, worth_of_levels(levels, n_levels, "sum_wap"))
    gains = worth_of_levels(levels, n_levels, "exponential")
    found["ndcg"], found["asi"] = ndcg(levels, gains), asi(levels)
    worth = worth_of_levels(levels, n_levels, **relevance)
    values = [worth[level] for level in levels]
    for k in ks:
        total, last = sum(values), values[k - 1] if k <= len(values) else 0
        found[f"h_recall@{k}"] = sum(values[:k]) / total if total else NAN
        found[f"h_precision@{k}"] = sum(min(value, last) for value in values[:k]) / (k * last) if last else NAN
        found[f"ndcg@{k}"] = ndcg(levels, gains, k)
        distances = [n_levels - level for level in levels[:k]]
        wrong = [distance for distance in distances if distance]
        any_relevant = any(level > 0 for level in levels)
        found[f"distance@{k}"] = sum(distances) / len(distances) if any_relevant else NAN
        found[f"severity@{k}"] = sum(wrong) / len(wrong) if any_relevant and wrong else NAN
    return found


def counting_metrics(scores, levels, n_levels):
    """AP of each level, H-AP and NDCG with ranks ``1 + #{others that score at least as much}``."""
    items = [(score, level) for score, level in zip(scores, levels, strict=True) if level >= 0]
    worth = worth_of_levels([level for _, level in items], n_levels)
    gains = worth_of_levels([], n_levels, "exponential")

    def rank(score, value=lambda level: 1):
        return sum(value(level) for other, level in items if other >= score)

    found = {}
    for label in range(n_levels):
        hits = [score for score, level in items if level >= n_levels - label]
        terms = [rank(score, lambda level, label=label: level >= n_levels - label) / rank(score) for score in hits]
        found["map" if label == 0 else f"map_label_{label}"] = sum(terms) / len(hits) if hits else NAN
    total = sum(worth[level] for _, level in items)
    terms = [
        rank(score, lambda other, level=level: min(worth[other], worth[level])) / rank(score) for score, level in items
    ]
    found["h_ap"] = sum(terms) / total if total else NAN
    gain = sum(gains[level] / math.log2(1 + rank(score)) for score, level in items)
    best = sorted((gains[level] for _, level in items), reverse=True)
    ideal = sum(value / math.log2(1 + place) for place, value in enumerate(best, start=1))
    found["ndcg"] = gain / ideal if ideal else NAN
    return found
