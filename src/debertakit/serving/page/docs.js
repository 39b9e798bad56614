// The API page: each operation of openapi.json with its fields, an example, a curl command and a button to send it.

import { fetchJson, ask } from "./ask.js";

const $ = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

let schemas = {};
let models = [];
const resolve = (schema) => (schema?.$ref ? resolve(schemas[schema.$ref.split("/").pop()]) : schema || {});

function typeOf(given) {
  const schema = resolve(given);
  if (schema.anyOf) return [...new Set(schema.anyOf.map(typeOf))].join(" or ");
  if (schema.type === "array") return `list of ${schema.items ? typeOf(schema.items) : "any"}`;
  return schema.properties ? "object" : schema.type || "any";
}

// Rows of a table: name, type, notes. The fields of objects in lists follow, with dotted names.
function fieldRows(given, prefix = "") {
  const schema = resolve(given);
  return Object.entries(schema.properties || {}).flatMap(([name, field]) => {
    const notes = [(schema.required || []).includes(name) ? "required" : "optional", resolve(field).description || field.description];
    for (const [key, word] of [["minItems", "at least"], ["maxItems", "at most"], ["maxLength", "at most"]]) {
      if (field[key] !== undefined) notes.push(`${word} ${field[key]}`);
    }
    const row = make("tr", {}, ...[prefix + name, typeOf(field), notes.filter(Boolean).join("; ")].map((text) => make("td", {}, text)));
    let [inner, path] = [resolve(field), prefix + name];
    for (; inner.type === "array"; path += "[]") inner = resolve(inner.items);
    if (inner.anyOf) inner = resolve(inner.anyOf.find((each) => resolve(each).properties)); // the usual one comes first
    return [row, ...(inner.properties ? fieldRows(inner, `${path}.`) : [])];
  });
}

// model: the name to write where the body needs one.
function example(given, model, depth = 0) {
  const schema = resolve(given);
  if (schema.examples?.length) return schema.examples[0];
  if (schema.anyOf) return example(schema.anyOf[0], model, depth);
  if (schema.type === "array") return [example(schema.items, model, depth + 1)];
  if (schema.properties && depth < 5) {
    const shown = Object.entries(schema.properties).filter(([name, field]) => (schema.required || []).includes(name) || field.examples);
    return Object.fromEntries(shown.map(([name, field]) => [name, name === "model" ? model : example(field, model, depth + 1)]));
  }
  return { string: "text", integer: 0, number: 0, boolean: false }[schema.type] ?? null;
}

const table = (rows) => make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, make("tbody", {}, ...rows)));
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function operation(path, method, details) {
  const body = details.requestBody?.content?.["application/json"]?.schema;
  const url = new URL(path.slice(1), document.baseURI).href;
  const box = make("section", { className: "operation card" }, make("h2", {}, `${method.toUpperCase()} ${path}`));
  const about = details.description || details.summary;
  if (about) box.append(make("p", {}, about));
  if (body) box.append(make("h3", {}, "Body"), table(fieldRows(body)));
  const model = (models.find((each) => each.task === path.slice(1)) ?? models.find((each) => each.explains) ?? models[0])?.name;
  const written = body && JSON.stringify(example(body, model), null, 1);
  const area = body && make("textarea", { rows: written.split("\n").length + 1, value: written, ariaLabel: "Body" });
  const curl = body ? `curl -s ${url} -H 'content-type: application/json' -d ${quoted(JSON.stringify(JSON.parse(written)))}` : `curl -s ${url}`;
  box.append(make("pre", { tabIndex: 0 }, curl));
  const send = make("button", { type: "submit" }, "Send");
  const shown = make("pre", { tabIndex: 0, hidden: true });
  const form = make("form", {}, ...(area ? [area] : []), make("p", {}, send));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    try {
      const { status, data } = await fetchJson(path.slice(1), { method: method.toUpperCase(), body: area?.value });
      shown.textContent = `${status}\n${typeof data === "string" ? data : JSON.stringify(data, null, 1)}`;
    } catch (error) {
      shown.textContent = error.message;
    }
    shown.hidden = false;
    send.disabled = false;
  });
  const answers = Object.entries(details.responses || {});
  const success = answers.find(([status]) => status === "200")?.[1]?.content?.["application/json"]?.schema;
  if (success && resolve(success).properties) box.append(make("h3", {}, "Answer"), table(fieldRows(success)));
  const rows = answers.map(([status, { description }]) => make("tr", {}, make("td", {}, status), make("td", {}, description)));
  box.append(make("details", {}, make("summary", {}, "Status codes"), table(rows)), form, shown);
  return box;
}

Promise.all([ask("openapi.json"), ask("models")]).then(([api, found]) => {
  models = found;
  schemas = api.components?.schemas || {};
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, details]) => operation(path, method, details)));
  $("docs").replaceChildren(...operations);
}).catch((error) => { $("status").className = "problem"; $("status").textContent = error.message; });
