"use strict";
// Draws the routes of /openapi.json. Text is only ever set as text, so nothing in it can become markup.

const EXAMPLES = {
  "/v1/rate-limit/check": { user_id: "user_123", endpoint: "/api/v1/users" },
  "/v1/rate-limit/explain": { user_id: "user_123", endpoint: "/api/v1/users" },
  "/v1/rate-limit/batch-check": { checks: [{ user_id: "user_123", endpoint: "/a" }, { user_id: "user_456", endpoint: "/b" }] },
  "/v1/rate-limit/reset": { user_id: "user_123", endpoint: "/api/v1/users" },
  "/v1/rate-limit/config": { user_id: "user_123", endpoint: "/api/v1/users", limit: 2000, window_seconds: 60, strategy: "token_bucket" },
};

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Descriptions come with `names` in backticks.
function prose(element, text) {
  text.split("`").forEach((part, index) => element.append(index % 2 ? make("code", "", part) : part));
  return element;
}

function resolve(schema, api) {
  if (schema && schema.$ref) return resolve(api.components.schemas[schema.$ref.split("/").pop()], api);
  // Of several the first is the usual one.
  if (schema && schema.oneOf) return resolve(schema.oneOf.find((part) => part.type !== "null"), api);
  return schema || {};
}

function kind(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.oneOf) return schema.oneOf.map(kind).sort((a, b) => (a === "null") - (b === "null")).join(" or ");
  const types = [].concat(schema.type || "object");
  return types.map((type) => (type === "array" ? kind(schema.items) + "[]" : type)).join(" or ");
}

function about(field) {
  // What may be null is described inside.
  return [field, ...(field.oneOf || [])].map((part) => part.description).find(Boolean) || "";
}

function rows(table, entries) {
  for (const cells of entries) {
    const row = table.insertRow();
    for (const cell of cells) prose(row.insertCell(), cell);
  }
}

function table(headings, entries) {
  const element = make("table");
  const head = element.createTHead().insertRow();
  for (const heading of headings) head.append(make("th", "", heading));
  rows(element.createTBody(), entries);
  return element;
}

function fieldsOf(schema, api) {
  const resolved = resolve(schema, api);
  const parts = [resolved, ...(resolved.allOf || []).map((part) => resolve(part, api))];
  const required = new Set(parts.flatMap((part) => part.required || []));
  return parts.flatMap((part) => Object.entries(part.properties || {})).map(([name, field]) =>
    [name + (required.has(name) ? "" : "?"), kind(field), about(field)]);
}

function tryIt(verb, path, hasBody) {
  const form = make("div");
  const key = make("input");
  key.type = "password";
  key.autocomplete = "off";
  key.placeholder = "key, for routes that need one";
  key.setAttribute("aria-label", "key");
  const address = make("input");
  address.value = path;
  address.setAttribute("aria-label", "path");
  const body = make("textarea");
  body.value = JSON.stringify(EXAMPLES[path] || {}, null, 2);
  body.setAttribute("aria-label", "body");
  const button = make("button", "", "Send");
  const output = make("pre");
  output.hidden = true;
  output.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    const headers = hasBody ? { "content-type": "application/json" } : {};
    if (key.value) headers.authorization = "Bearer " + key.value;
    output.hidden = false;
    try {
      const answer = await fetch(address.value, { method: verb, headers, body: hasBody ? body.value : undefined });
      const shown = [...answer.headers].filter(([name]) => /ratelimit|retry|request-id/.test(name));
      const lines = shown.map(([name, value]) => name + ": " + value).join("\n");
      output.textContent = answer.status + " " + answer.statusText + "\n" + lines + "\n\n" + await answer.text();
    } catch (error) {
      output.textContent = String(error);
    }
  });
  form.append(address, key, ...(hasBody ? [body] : []), button, output);
  return form;
}

function route(verb, path, operation, api) {
  const box = make("details");
  const summary = make("summary");
  summary.append(make("span", "verb", verb.toUpperCase()), make("span", "path", path));
  summary.append(prose(make("div", "about"), operation.summary || ""));
  const inside = make("div", "inside");
  if (operation.description) inside.append(prose(make("p"), operation.description));
  const body = operation.requestBody && operation.requestBody.content["application/json"];
  if (operation.parameters && operation.parameters.length) {
    inside.append(make("h3", "", "Parameters"), table(["name", "in", "about"],
      operation.parameters.map((p) => [p.name + (p.required ? "" : "?"), p.in, p.description || ""])));
  }
  if (body) inside.append(make("h3", "", "Body"), table(["field", "type", "about"], fieldsOf(body.schema, api)));
  const answers = Object.entries(operation.responses || {});
  inside.append(make("h3", "", "Answers"), table(["status", "about"], answers.map(([s, a]) => [s, a.description || ""])));
  for (const [status, answer] of answers.slice(0, 1)) {
    const schema = answer.content && answer.content["application/json"] && answer.content["application/json"].schema;
    const fields = schema ? fieldsOf(schema, api) : [];
    if (fields.length) inside.append(make("h3", "", "Answer " + status), table(["field", "type", "about"], fields));
  }
  inside.append(make("h3", "", "Try it"), tryIt(verb.toUpperCase(), path, Boolean(body)));
  box.append(summary, inside);
  return box;
}

async function draw() {
  const main = document.getElementById("routes");
  try {
    const api = await (await fetch("/openapi.json")).json();
    document.getElementById("about").textContent = api.info.description + " Version " + api.info.version + ".";
    main.textContent = "";
    // What most people come for stands first.
    const rank = (path) => (path.startsWith("/v1/rate-limit") ? 0 : path.startsWith("/v1/") ? 1 : 2);
    const routes = Object.entries(api.paths).sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b));
    for (const [path, operations] of routes) {
      for (const [verb, operation] of Object.entries(operations)) main.append(route(verb, path, operation, api));
    }
  } catch (error) {
    main.textContent = "The description could not be loaded: " + error;
  }
}

draw();
