// Chosen values to the API's filter language, which is Python's, cut down.

const NAME = /^[\p{ID_Start}_][\p{ID_Continue}]*$/u;
const WORDS = new Set(
  (
    "False None True and as assert async await break class continue def del elif else except finally for from global if " +
    "import in is lambda nonlocal not or pass raise return try while with yield"
  ).split(" "),
);

/** Can a filter speak of this field? A name such as "product type" cannot be written in the language. */
export const isName = (text) => NAME.test(text) && !WORDS.has(text);

/** A value as the language writes it. JSON's strings are Python's: the same quotes and escapes. */
export function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(value);
}

/** facets: {field: {values: [...]}} or {field: {min, max}}; free: what a person wrote. Both must hold. */
export function composed(facets, free = "") {
  const conditions = Object.entries(facets)
    .filter(([field]) => isName(field))
    .flatMap(([field, chosen]) => {
      if (Array.isArray(chosen?.values) && chosen.values.length) return [anyOf(field, chosen.values)];
      const sides = [];
      if (Number.isFinite(chosen?.min)) sides.push(`${field} >= ${chosen.min}`);
      if (Number.isFinite(chosen?.max)) sides.push(`${field} <= ${chosen.max}`);
      return sides;
    });
  if (free.trim()) conditions.push(conditions.length ? `(${free.trim()})` : free.trim());
  return conditions.join(" and ");
}

function anyOf(field, values) {
  if (values.length === 1) return `${field} == ${literal(values[0])}`;
  const present = values.filter((value) => value !== null);
  const listed = `${field} in [${present.map(literal).join(", ")}]`;
  return present.length < values.length ? `(${listed} or ${field} == None)` : listed;
}
