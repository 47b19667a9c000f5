// The relation of a result to a query with a known label: in words, shape and colour, never in colour alone.

const SHARED = ["Same label", "Same parent", "Same grandparent"];

/** relation: levels shared, counted from the coarsest; null if unknown. */
export function relationOf(relation, n_levels) {
  if (relation === null || relation === undefined) return null;
  if (relation <= 0) return { step: "none", text: "Unrelated", mark: "○" };
  const above = n_levels - relation;
  return {
    step: String(Math.min(above, 3)),
    text: SHARED[above] ?? "Distantly related",
    mark: ["●", "◕", "◑"][above] ?? "◔",
  };
}

/** [{step, text, mark, count}], nearest first, of all the kinds that occur. */
export function tally(results, n_levels) {
  const found = new Map();
  for (const { relation } of results) {
    const kind = relationOf(relation, n_levels);
    if (kind) found.set(kind.text, { ...kind, count: (found.get(kind.text)?.count ?? 0) + 1 });
  }
  const order = ["0", "1", "2", "3", "none"];
  return [...found.values()].sort((a, b) => order.indexOf(a.step) - order.indexOf(b.step));
}
