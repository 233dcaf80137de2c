// The form of an operation: builds a request, sends it, and shows it as a curl command.

import { el, prose } from "./dom.js";
import { unwrap } from "./schema.js";

const SHOWN_MAX = 200000;
const keyField = document.getElementById("page-key");
const key = () => keyField.value.trim();

// Between single quotes a shell changes nothing, so only the quote itself needs care.
const quote = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

// The key stays out of the clipboard and of the shell's history.
export function curlOf({ method, url, headers, body }) {
  const parts = [
    "curl -i" + (method === "GET" || (method === "POST" && body !== undefined) ? "" : " -X " + method) + " " + quote(url),
  ];
  for (const [name, value] of Object.entries(headers)) {
    parts.push(name === "authorization" ? '-H "authorization: Bearer $TOLLGATE_KEY"' : "-H " + quote(name + ": " + value));
  }
  if (body !== undefined) parts.push("--data-raw " + quote(body));
  return parts.join(" \\\n  ");
}

// Indents JSON without parsing it: large numbers stay as they were sent.
export function indent(text) {
  let depth = 0;
  const line = (change) => "\n" + "  ".repeat(Math.max(0, (depth += change)));
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{[]\s*[}\]]|[{}[\],:]|[^\s"{}[\],:]+/g) || [];
  return tokens
    .map((token) => {
      if (token === "{" || token === "[") return token + line(1);
      if (token === "}" || token === "]") return line(-1) + token;
      return token === "," ? token + line(0) : token === ":" ? ": " : token;
    })
    .join("");
}

function control(parameter, id) {
  const { schema } = unwrap(parameter.schema);
  const options = schema.enum || (schema.type === "boolean" ? [true, false] : undefined);
  const value = parameter.example === undefined ? "" : String(parameter.example);
  const attributes = {
    id,
    "data-name": parameter.name,
    "data-in": parameter.in,
    "aria-required": parameter.required ? "true" : undefined,
  };
  if (!options) {
    const hint = parameter.name.includes("{") ? "name=value" : "";
    return el("input", { ...attributes, value, placeholder: hint, autocomplete: "off", spellcheck: "false" });
  }
  return el(
    "select",
    attributes,
    ["", ...options].map((option) => el("option", { selected: String(option) === value }, String(option))),
  );
}

function parameterField(parameter, prefix) {
  const id = prefix + "-" + parameter.in + "-" + parameter.name;
  return el(
    "div.control",
    {},
    el("label", { for: id }, parameter.name, el("small", {}, parameter.in + (parameter.required ? ", required" : ""))),
    control(parameter, id),
  );
}

// Fields that must be filled or are prefilled come first, the others on request.
function parameterFields(parameters, prefix) {
  const isShown = (each) => each.required || each.example !== undefined;
  const rest = parameters.filter((each) => !isShown(each)).map((each) => parameterField(each, prefix));
  const more = rest.length ? el("details.more", {}, el("summary", {}, "Optional parameters (" + rest.length + ")"), rest) : "";
  return [...parameters.filter(isShown).map((each) => parameterField(each, prefix)), more];
}

const exampleText = (value) => (typeof value === "string" ? value : JSON.stringify(value === undefined ? {} : value, null, 2));

function bodyFields(content, prefix) {
  const types = Object.keys(content);
  const id = prefix + "-body";
  const area = el("textarea", { id, spellcheck: "false", rows: 6 });
  const type = el(
    "select",
    { "aria-label": "Content type", change: () => fill() },
    types.map((name) => el("option", {}, name)),
  );
  const fill = () => {
    area.value = exampleText(content[type.value].example);
    area.rows = Math.min(16, area.value.split("\n").length + 1);
  };
  fill();
  return {
    area,
    type,
    element: el("div.control", {}, el("label", { for: id }, "Body", types.length > 1 ? type : el("small", {}, types[0])), area),
  };
}

function pathFor(template, fields, parameters) {
  return template.replace(/\{([^}]+)\}/g, (whole, name) => {
    const field = fields.find((each) => each.dataset.in === "path" && each.dataset.name === name);
    const text = encodeURIComponent(field ? field.value : "");
    const { "x-multi-segment": keepsSlashes } = parameters.find((each) => each.name === name) || {};
    return keepsSlashes ? text.replaceAll("%2F", "/") : text;
  });
}

function queryFor(fields) {
  const query = new URLSearchParams();
  for (const { dataset, value } of fields.filter((each) => each.dataset.in === "query" && each.value !== "")) {
    // `descriptor.{name}` takes `name=value`.
    const [name, ...rest] = value.split("=");
    if (dataset.name.includes("{")) query.append(dataset.name.replace(/\{.*\}/, name), rest.join("="));
    else query.append(dataset.name, value);
  }
  return String(query) && "?" + query;
}

// What the form would send now.
function requestFrom({ method, path, operation, scope, isOpen }, form, body) {
  const fields = [...form.querySelectorAll("[data-name]")];
  const headers = {};
  if (scope && (key() || !isOpen)) headers.authorization = "Bearer " + key();
  for (const each of fields.filter((each) => each.dataset.in === "header" && each.value !== ""))
    headers[each.dataset.name] = each.value;
  const text = body && body.area.value !== "" ? body.area.value : undefined;
  if (text !== undefined) headers["content-type"] = body.type.value;
  return {
    method: method.toUpperCase(),
    url: location.origin + pathFor(path, fields, operation.parameters || []) + queryFor(fields),
    headers,
    body: text,
  };
}

async function answerTo({ url, ...request }) {
  if (!key()) delete request.headers.authorization;
  const started = performance.now();
  const response = await fetch(url, { ...request, credentials: "omit", cache: "no-store" });
  const text = await response.text();
  const isJson = (response.headers.get("content-type") || "").startsWith("application/json");
  const shown = isJson ? indent(text) : text;
  return [
    el(
      "p",
      {},
      el("span.status.s" + String(response.status)[0], {}, response.status + " " + response.statusText),
      el("small", {}, Math.round(performance.now() - started) + " ms"),
    ),
    text
      ? el("pre.body", { tabindex: 0, "aria-label": "Response body" }, shown.slice(0, SHOWN_MAX))
      : el("p.hint", {}, "No body."),
    shown.length > SHOWN_MAX ? el("p.hint", {}, "The rest is not shown.") : "",
    el(
      "pre.headers",
      { tabindex: 0, "aria-label": "Response headers" },
      [...response.headers].map(([name, value]) => name + ": " + value).join("\n"),
    ),
  ];
}

async function send(request, button, output) {
  button.disabled = true;
  output.replaceChildren(el("p.hint", {}, "Sending …"));
  try {
    output.replaceChildren(...(await answerTo(request)).filter(Boolean));
  } catch (error) {
    output.replaceChildren(el("p.warning", {}, String(error)));
  }
  button.disabled = false;
}

// Pages without TLS have no clipboard API; there the old command copies the selection.
async function copy(pre, button) {
  getSelection().selectAllChildren(pre);
  const copied =
    (await (navigator.clipboard
      ? navigator.clipboard.writeText(pre.textContent).then(
          () => true,
          () => false,
        )
      : false)) || document.execCommand("copy");
  button.textContent = copied ? "Copied" : "Selected: press Ctrl+C";
  setTimeout(() => {
    button.textContent = "Copy as curl";
  }, 2000);
}

function keyNote({ scope, isOpen }) {
  if (!scope) return "";
  if (key()) return "Sends the API key entered above.";
  return isOpen ? "Without a key." : "Enter an API key with the scope `" + scope + "` at the top of the page.";
}

export function tryPanel(item) {
  const { operation, id } = item;
  const body = operation.requestBody ? bodyFields(operation.requestBody.content, id) : undefined;
  const fields = el("div.controls", {}, parameterFields(operation.parameters || [], id), body ? body.element : "");
  const note = el("p.hint");
  const curl = el("pre.curl", { tabindex: 0, "aria-label": "curl command" });
  const output = el("div.answer", { "aria-live": "polite" });
  const isDryRun = (operation.parameters || []).some((each) => each.name === "dry_run");
  const button = el(
    "button.primary",
    { type: "button", click: () => send(requestFrom(item, fields, body), button, output) },
    "Send",
  );
  const copyButton = el("button", { type: "button", click: () => copy(curl, copyButton) }, "Copy as curl");
  const refresh = () => {
    curl.textContent = curlOf(requestFrom(item, fields, body));
    note.replaceChildren(...prose(keyNote(item)));
  };
  for (const source of [fields, keyField]) for (const event of ["input", "change"]) source.addEventListener(event, refresh);
  fields.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.target.tagName === "INPUT")) button.click();
  });
  refresh();
  return el(
    "section.try",
    { "aria-label": "Try it" },
    el("h4", {}, "Try it"),
    note,
    fields,
    isDryRun ? el("p.hint", {}, prose("With `dry_run` nothing is changed; clear it to apply the change.")) : "",
    el("div.buttons", {}, button, copyButton),
    output,
    curl,
  );
}
