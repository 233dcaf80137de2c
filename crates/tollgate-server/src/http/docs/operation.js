// Shows one operation: what it takes, what it answers, and a form to try it.

import { disclosure, el, prose } from "./dom.js";
import { deref, fieldItem, schemaView, typeLabel, unwrap } from "./schema.js";
import { tryPanel } from "./request.js";

export const methodBadge = (method) => el("span.method." + method, {}, method.toUpperCase());

// The scope that a route requires, and whether it can be called without a key.
export function scopeOf(operation) {
  const security = operation.security || [];
  const scope = security.flatMap((option) => Object.values(option).flat())[0];
  return { scope, isOpen: security.length === 0 || security.some((option) => Object.keys(option).length === 0) };
}

function scopeText(operation) {
  const { scope, isOpen } = scopeOf(operation);
  if (!scope) return "Needs no key.";
  return isOpen
    ? "Needs a key with the scope `" + scope + "`, or no key while `auth.open_checks` is on."
    : "Needs a key with the scope `" + scope + "`.";
}

const section = (title, ...content) => el("section", {}, el("h4", {}, title), ...content);

function parameters(operation) {
  const items = operation.parameters.map((each) =>
    fieldItem({ ...each, note: each.in, schema: { ...each.schema, example: each.example } }),
  );
  return section("Parameters", el("ul.fields", {}, items));
}

function contentView(content) {
  return Object.entries(content || {}).map(([type, { schema }]) => {
    const about = unwrap(schema).description;
    return el(
      "div",
      {},
      el("p.hint", {}, el("code", {}, type), " ", typeLabel(schema)),
      about ? el("p", {}, prose(about)) : "",
      schemaView(schema),
    );
  });
}

function responseBox([status, response]) {
  const headers = Object.entries(response.headers || {}).map(([name, header]) => ({ name, ...deref(header, "headers") }));
  const summary = [el("span.status.s" + status[0], {}, status), el("span", {}, prose(response.description))];
  const box = disclosure("details.response", {}, summary, () =>
    el(
      "div.inside",
      {},
      headers.length ? el("div", {}, el("p.hint", {}, "Headers"), el("ul.fields", {}, headers.map(fieldItem))) : "",
      response.content ? contentView(response.content) : el("p.hint", {}, "No body."),
    ),
  );
  if (status[0] === "2") box.reveal();
  return box;
}

function details({ method, path, operation, id }) {
  const reference = el(
    "div.reference",
    {},
    operation.description ? el("p", {}, prose(operation.description)) : "",
    el("p", {}, prose(scopeText(operation)), " ", el("a.permalink", { href: "#" + id }, "#" + id)),
    (operation.parameters || []).length ? parameters(operation) : "",
    operation.requestBody ? section("Request body", contentView(operation.requestBody.content)) : "",
    section("Responses", Object.entries(operation.responses || {}).map(responseBox)),
  );
  return el("div.inside.columns", {}, reference, tryPanel({ method, path, operation, id, ...scopeOf(operation) }));
}

function scopeBadge(operation) {
  const { scope, isOpen } = scopeOf(operation);
  if (!scope) return "";
  const text = "scope " + scope + (isOpen ? " (if required)" : "");
  return el("span.scope", { title: scopeText(operation).replaceAll("`", "") }, text);
}

export function operationBox(item) {
  const { method, path, operation, id } = item;
  const summary = [
    methodBadge(method),
    el("code.path", {}, path),
    operation.deprecated ? el("span.warning", {}, "deprecated") : "",
    scopeBadge(operation),
    el("span.about", {}, prose(operation.summary)),
    el("span.hits", { hidden: true }),
  ];
  return disclosure("details.operation", { id }, summary, () => details(item));
}
