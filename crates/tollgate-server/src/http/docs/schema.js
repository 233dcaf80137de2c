// Reads JSON schemas of the description and shows them as lists of fields.

import { disclosure, el, prose } from "./dom.js";

let components = {};

export function setComponents(value) {
  components = value || {};
}

const nameOf = (reference) => reference.split("/").pop();

// Follows references to headers and parameters.
export function deref(part, kind) {
  return part && part.$ref ? (components[kind] || {})[nameOf(part.$ref)] || {} : part || {};
}

// A schema behind its reference: { name, schema, nullable, description }.
export function unwrap(schema = {}) {
  // `oneOf: [x, null]` is a nullable x.
  const others = (schema.oneOf || schema.anyOf || []).filter((part) => part.type !== "null");
  if (others.length === 1) return { ...describe(unwrap(others[0]), schema), nullable: true };
  if (!schema.$ref) return describe({ name: "", schema, nullable: [schema.type].flat().includes("null") }, schema);
  const name = nameOf(schema.$ref);
  return { ...describe(unwrap(deref(schema, "schemas")), schema), name };
}

const describe = (found, schema) => ({ ...found, description: schema.description || found.description || "" });

const alternatives = (schema) => (schema.oneOf || schema.anyOf || []).filter((part) => part.type !== "null");

// The fields of an object, with those of its `allOf` parts.
export function fieldsOf(schema) {
  const { schema: found } = unwrap(schema);
  const required = found.required || [];
  const own = Object.entries(found.properties || {}).map(([name, field]) => ({
    name,
    schema: field,
    required: required.includes(name),
  }));
  return [...(found.allOf || []).flatMap(fieldsOf), ...own].sort((a, b) => b.required - a.required);
}

export function typeOf(schema) {
  const { name, schema: found } = unwrap(schema);
  if (name) return name;
  if (alternatives(found).length) return alternatives(found).map(typeOf).join(" or ");
  const type = [found.type || (found.enum ? "string" : "object")]
    .flat()
    .filter((each) => each !== "null")
    .join(" or ");
  if (type === "array") return typeOf(found.items).replace(/^.* or .*$/, "($&)") + "[]";
  if (type === "object" && typeof found.additionalProperties === "object") return "map of " + typeOf(found.additionalProperties);
  return type;
}

function range(low, high, unit = "") {
  if (low === undefined && high === undefined) return [];
  const few = (value) => Number(value).toLocaleString("en");
  if (low === high) return [few(low) + unit];
  if (high === undefined) return ["at least " + few(low) + unit];
  return [(low === undefined ? "at most " : few(low) + " to ") + few(high) + unit];
}

// What a value must satisfy, as short texts.
export function constraintsOf(schema) {
  const { schema: found } = unwrap(schema);
  const all = { ...found, ...schema };
  const code = (value) => "`" + JSON.stringify(value) + "`";
  const examples = all.examples || (all.example === undefined ? [] : [all.example]);
  return [
    ...(all.enum ? ["one of " + all.enum.map(code).join(", ")] : []),
    ...(all.const === undefined ? [] : ["always " + code(all.const)]),
    ...range(all.minimum, all.maximum),
    ...range(all.exclusiveMinimum, undefined).map((text) => text.replace("at least", "more than")),
    ...range(undefined, all.exclusiveMaximum).map((text) => text.replace("at most", "less than")),
    ...range(all.minLength, all.maxLength, " characters"),
    ...range(all.minItems, all.maxItems, " items"),
    ...range(all.minProperties, all.maxProperties, " entries"),
    ...(all.uniqueItems ? ["no duplicates"] : []),
    ...(all.pattern ? ["matches `" + all.pattern + "`"] : []),
    ...(all.format && !/^int/.test(all.format) ? ["format " + all.format] : []),
    ...(all.default === undefined ? [] : ["default " + code(all.default)]),
    ...examples.map((value) => "example " + code(value)),
    ...(all.deprecated ? ["deprecated"] : []),
  ];
}

// The schema whose fields are worth showing below a value: that of the items of a list, of the values of a map.
function inner(schema) {
  const { schema: found } = unwrap(schema);
  if (found.items) return inner(found.items);
  if (typeof found.additionalProperties === "object") return inner(found.additionalProperties);
  return schema;
}

const hasParts = (schema) => fieldsOf(schema).length > 0 || alternatives(unwrap(schema).schema).length > 0;

// The name of a type, linked to its schema.
export function typeLabel(schema) {
  const { name } = unwrap(inner(schema));
  const text = typeOf(schema) + (unwrap(schema).nullable ? " or null" : "");
  return name && text.includes(name) ? el("a.type", { href: "#schema-" + name }, text) : el("span.type", {}, text);
}

// One field, parameter or header. The name is omitted for alternatives.
export function fieldItem({ name, schema = {}, required, description, note }) {
  const limits = constraintsOf(schema);
  const part = inner(schema);
  const about = description || unwrap(schema).description;
  return el(
    "li.field",
    {},
    el(
      "div.head",
      {},
      name ? el("code.name", {}, name) : "",
      typeLabel(schema),
      note ? el("span.note", {}, note) : "",
      required ? el("span.required", {}, "required") : "",
    ),
    about ? el("p", {}, prose(about)) : "",
    limits.length
      ? el(
          "ul.limits",
          {},
          limits.map((text) => el("li", {}, prose(text))),
        )
      : "",
    hasParts(part)
      ? disclosure("details.nested", {}, [typeOf(part) === "object" ? "Fields" : typeOf(part)], () => schemaView(part))
      : "",
  );
}

// The fields of a schema, or its alternatives.
export function schemaView(schema) {
  const { schema: found } = unwrap(schema);
  const options = alternatives(found);
  if (options.length)
    return el(
      "div",
      {},
      el("p.hint", {}, "One of:"),
      el(
        "ul.fields",
        {},
        options.map((option) => fieldItem({ schema: option })),
      ),
    );
  const fields = fieldsOf(schema);
  if (fields.length) return el("ul.fields", {}, fields.map(fieldItem));
  return el("ul.fields", {}, fieldItem({ schema: inner(schema) === schema ? found : schema }));
}

// A named schema as a section of its own.
export function schemaBox(name) {
  const schema = { $ref: "#/components/schemas/" + name };
  return disclosure("details.schema", { id: "schema-" + name }, [el("code.name", {}, name)], () => {
    const { description } = unwrap(schema);
    return el("div.inside", {}, description ? el("p", {}, prose(description)) : "", schemaView(schema));
  });
}

// The names of all fields below a schema.
export function fieldNames(schema, seen = new Set()) {
  const { name, schema: found } = unwrap(schema);
  if (name && seen.has(name)) return [];
  if (name) seen.add(name);
  const parts = [...alternatives(found), ...(found.allOf || []), found.items, found.additionalProperties].filter(
    (part) => typeof part === "object",
  );
  const own = Object.entries(found.properties || {});
  return [
    ...own.map(([field]) => field),
    ...[...own.map(([, field]) => field), ...parts].flatMap((part) => fieldNames(part, seen)),
  ];
}
