// Chosen values to the API's filter language, which is Python's, cut down.

/** Can a filter speak of this field? Those with quotes, backslashes or breaks in their names cannot be written in it. */
export const isName = (text) => text !== "" && !/["\\\p{Cc}]/u.test(text);

/** A field as the language writes it, whatever its name. */
const named = (field) => `metadata[${JSON.stringify(field)}]`;

/** A value as the language writes it. JSON's strings are Python's: the same quotes and escapes. */
export function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(value);
}

/** facets: {field: {values: [...]}}, {field: {has: [...]}} or {field: {min, max}}; free: what a person wrote. All must hold. */
export function composed(facets, free = "") {
  const conditions = Object.entries(facets)
    .filter(([field]) => isName(field))
    .flatMap(([field, chosen]) => {
      if (Array.isArray(chosen?.values) && chosen.values.length) return [anyOf(field, chosen.values)];
      const codes = Array.isArray(chosen?.has) ? chosen.has.filter((code) => typeof code === "string" && code !== "") : [];
      if (codes.length) return codes.map((code) => `has(${named(field)}, ${literal(code)})`);
      const sides = [];
      if (Number.isFinite(chosen?.min)) sides.push(`${named(field)} >= ${chosen.min}`);
      if (Number.isFinite(chosen?.max)) sides.push(`${named(field)} <= ${chosen.max}`);
      return sides;
    });
  if (free.trim()) conditions.push(conditions.length ? `(${free.trim()})` : free.trim());
  return conditions.join(" and ");
}

function anyOf(field, values) {
  if (values.length === 1) return `${named(field)} == ${literal(values[0])}`;
  const present = values.filter((value) => value !== null);
  const listed = `${named(field)} in [${present.map(literal).join(", ")}]`;
  return present.length < values.length ? `(${listed} or ${named(field)} == None)` : listed;
}
