// Builds elements. Text always becomes a text node: nothing in the description or in a response can become markup.

// `name` is a tag with classes, `p.note`. Functions among the attributes are event listeners.
export function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== ""));
  return element;
}

// Text with `code` in backticks.
export function prose(text = "") {
  return String(text)
    .split("`")
    .map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

// A <details> whose content is built when it is first opened.
export function disclosure(name, attributes, summary, build) {
  const box = el(name, attributes, el("summary", {}, summary));
  const fill = () => {
    if (box.childElementCount === 1) box.append(build());
  };
  box.addEventListener("toggle", () => box.open && fill());
  box.reveal = () => {
    fill();
    box.open = true;
  };
  return box;
}
