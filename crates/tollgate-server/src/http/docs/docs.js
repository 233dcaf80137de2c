"use strict";
// Renders /openapi.json. All text is set with textContent, so it cannot become markup.

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

// Renders `code` in backticks.
function prose(element, text) {
  text.split("`").forEach((part, index) => element.append(index % 2 ? make("code", "", part) : part));
  return element;
}

function resolve(schema, api) {
  if (schema && schema.$ref) return resolve(api.components.schemas[schema.$ref.split("/").pop()], api);
  // The first alternative is the usual one.
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
  // The description of a nullable field is in its alternative.
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
  key.placeholder = "API key, if the route needs one";
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
      const response = await fetch(address.value, { method: verb, headers, body: hasBody ? body.value : undefined });
      const shown = [...response.headers].filter(([name]) => /ratelimit|retry|request-id/.test(name));
      const lines = shown.map(([name, value]) => name + ": " + value).join("\n");
      output.textContent = response.status + " " + response.statusText + "\n" + lines + "\n\n" + await response.text();
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
    inside.append(make("h3", "", "Parameters"), table(["name", "in", "description"],
      operation.parameters.map((p) => [p.name + (p.required ? "" : "?"), p.in, p.description || ""])));
  }
  if (body) inside.append(make("h3", "", "Body"), table(["field", "type", "description"], fieldsOf(body.schema, api)));
  const responses = Object.entries(operation.responses || {});
  inside.append(make("h3", "", "Responses"), table(["status", "description"], responses.map(([status, response]) => [status, response.description || ""])));
  for (const [status, response] of responses.slice(0, 1)) {
    const schema = response.content && response.content["application/json"] && response.content["application/json"].schema;
    const fields = schema ? fieldsOf(schema, api) : [];
    if (fields.length) inside.append(make("h3", "", "Response " + status), table(["field", "type", "description"], fields));
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
    // Most readers look for the check routes.
    const rank = (path) => (path.startsWith("/v1/rate-limit") ? 0 : path.startsWith("/v1/") ? 1 : 2);
    const routes = Object.entries(api.paths).sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b));
    for (const [path, operations] of routes) {
      for (const [verb, operation] of Object.entries(operations)) main.append(route(verb, path, operation, api));
    }
  } catch (error) {
    main.textContent = "Cannot load /openapi.json: " + error;
  }
}

draw();
