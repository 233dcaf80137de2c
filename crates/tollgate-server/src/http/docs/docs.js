// Loads /openapi.json, lists its operations by group and tag, and follows links and searches.

import { el, prose } from "./dom.js";
import { methodBadge, operationBox, scopeOf } from "./operation.js";
import { fieldNames, schemaBox, setComponents } from "./schema.js";

const page = (name) => document.getElementById("page-" + name);
const METHODS = ["get", "post", "put", "patch", "delete"];
const entries = []; // what a search goes through: { box, link, text, fields }

function operationsOf(api) {
  const all = Object.entries(api.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => {
      const operation = methods[method];
      return { method, path, operation, id: operation.operationId, tag: (operation.tags || ["other"])[0] };
    }),
  );
  // Short paths first: /rules before /rules/{name}.
  return all.sort(
    (a, b) =>
      a.path.length - b.path.length || a.path.localeCompare(b.path) || METHODS.indexOf(a.method) - METHODS.indexOf(b.method),
  );
}

function groupsOf(api, operations) {
  const groups = api["x-tagGroups"] || [];
  const grouped = new Set(groups.flatMap((group) => group.tags));
  const rest = [...new Set(operations.map((item) => item.tag))].filter((tag) => !grouped.has(tag));
  return rest.length ? [...groups, { name: "Other", tags: rest }] : groups;
}

function schemasIn(operation) {
  const bodies = [operation.requestBody, ...Object.values(operation.responses || {})];
  return bodies.flatMap((body) => Object.values((body && body.content) || {}).map((content) => content.schema));
}

function addOperation(item) {
  const { operation, id, path, method, tag } = item;
  const box = operationBox(item);
  const link = el(
    "li",
    {},
    el("a", { href: "#" + id, title: method.toUpperCase() + " " + path }, methodBadge(method), id.replaceAll("_", " ")),
  );
  const text = [method, path, id, tag, operation.summary, operation.description, scopeOf(operation).scope]
    .join(" ")
    .toLowerCase();
  const fields = [
    ...(operation.parameters || []).map((each) => each.name),
    ...schemasIn(operation).flatMap((schema) => fieldNames(schema)),
  ];
  entries.push({ box, link, text, fields: [...new Set(fields)] });
  return { box, link };
}

function addSchema(name) {
  const box = schemaBox(name);
  const link = el("li", {}, el("a", { href: "#schema-" + name }, name));
  entries.push({
    box,
    link,
    text: ("schema " + name).toLowerCase(),
    fields: [...new Set(fieldNames({ $ref: "#/components/schemas/" + name }))],
  });
  return { box, link };
}

// One section of the page and its part of the navigation.
function section(id, title, parts) {
  page("content").append(
    el(
      "section.group",
      { id },
      el("h2", {}, title),
      parts.map((part) =>
        el(
          "section.tag",
          { id: part.id },
          part.name ? el("h3", {}, part.name) : "",
          part.about ? el("p.about", {}, prose(part.about)) : "",
          part.items.map((item) => item.box),
        ),
      ),
    ),
  );
  page("nav").append(
    el(
      "div",
      {},
      el("a.group", { href: "#" + id }, title),
      parts.map((part) =>
        el(
          "div.tag",
          {},
          part.name ? el("p", {}, part.name) : "",
          el(
            "ul",
            {},
            part.items.map((item) => item.link),
          ),
        ),
      ),
    ),
  );
}

function render(api) {
  setComponents(api.components);
  page("about").append(...prose(api.info.description), " Version " + api.info.version + ".");
  page("content").replaceChildren();
  const operations = operationsOf(api);
  const abouts = new Map((api.tags || []).map((tag) => [tag.name, tag.description]));
  for (const group of groupsOf(api, operations)) {
    section(
      "group-" + group.name.toLowerCase(),
      group.name,
      group.tags.map((tag) => ({
        id: "tag-" + tag,
        name: tag,
        about: abouts.get(tag),
        items: operations.filter((item) => item.tag === tag).map(addOperation),
      })),
    );
  }
  const names = Object.keys((api.components || {}).schemas || {});
  if (names.length) section("group-schemas", "Schemas", [{ items: names.map(addSchema) }]);
  page("content").removeAttribute("aria-busy");
}

// The fields that a word is part of, or nothing if the entry does not contain the word.
function hitsOf(entry, word) {
  if (entry.text.includes(word)) return [];
  const fields = entry.fields.filter((field) => field.toLowerCase().includes(word));
  return fields.length ? fields : undefined;
}

function search() {
  const words = page("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const entry of entries) {
    const hits = words.map((word) => hitsOf(entry, word));
    const isFound = hits.every(Boolean);
    entry.box.hidden = entry.link.hidden = !isFound;
    found += isFound;
    const note = entry.box.querySelector(":scope > summary > .hits");
    if (note) {
      const fields = [...new Set(isFound ? hits.flat() : [])];
      note.hidden = !fields.length;
      note.textContent = "fields: " + fields.slice(0, 4).join(", ") + (fields.length > 4 ? " …" : "");
    }
  }
  for (const part of document.querySelectorAll("section.tag, section.group, nav .tag, nav > div")) {
    part.hidden = !part.querySelector(
      part.closest("nav") ? "li:not([hidden])" : ".operation:not([hidden]), .schema:not([hidden])",
    );
  }
  page("found").textContent = words.length
    ? found
      ? found + " of " + entries.length + " match"
      : "Nothing matches. Escape clears the search."
    : "";
}

function mark(hash) {
  for (const link of page("nav").querySelectorAll("a")) {
    if (link.hash === hash) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

// Opens what the address names, scrolls to it and focuses it.
function follow() {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  if (!target || !page("content").contains(target)) return;
  if (target.closest("[hidden]")) {
    page("search").value = "";
    search();
  }
  if (target.reveal) target.reveal();
  mark(location.hash);
  target.scrollIntoView();
  const summary = target.querySelector(":scope > summary");
  if (summary) summary.focus({ preventScroll: true });
}

// The address names what was opened last, so that it can be copied.
function remember(event) {
  const summary = event.target.closest("summary");
  const box = summary && summary.parentElement;
  if (!box || !box.id || box.open) return;
  history.replaceState(null, "", "#" + box.id);
  mark("#" + box.id);
}

function onKey(event) {
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    page("search").focus();
    page("search").select();
  }
}

function onSearchKey(event) {
  if (event.key === "Escape") {
    page("search").value = "";
    search();
  }
  const first = event.key === "Enter" && entries.find((entry) => !entry.box.hidden);
  if (first) location.hash = first.box.id;
}

async function start() {
  try {
    render(await (await fetch("/openapi.json")).json());
  } catch (error) {
    page("content").replaceChildren(el("p.warning", {}, "Cannot show /openapi.json: " + error));
    return;
  }
  page("search").addEventListener("input", search);
  page("search").addEventListener("keydown", onSearchKey);
  page("content").addEventListener("click", remember);
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) follow(); // the address does not change
  });
  search();
  // Otherwise a reload would scroll back from what the address names.
  if (location.hash) history.scrollRestoration = "manual";
  follow();
}

start();
