// The page: a form for each task with its result, and the attention explorer. No libraries.
// The fields of a task come from /models. results.js draws results, and explain/page/explorer.js the explorer.

import { ask as fetchAnswer, Problem } from "./ask.js";
import { drawResult, make } from "./results.js";
import { EXAMPLES, EXPLORED, WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
let language = localStorage.getItem("language") || (navigator.language.startsWith("zh") ? "zh" : "en");
let models = [];
let last = null; // { model, item, result } on the screen, drawn again when the language changes
let explorer = null;
let explained = Promise.resolve(); // the last request of the explorer
const requests = { try: 0, explore: 0 }; // only the newest request of a form may draw

const say = (word) => WORDS[language][word] ?? word;
const chosen = (id = "model") => models.find((model) => model.name === $(id).value);

// --------------------------------------------------------------------------------------------------------- requests

const ask = (path, body) => fetchAnswer(path, body, say("key"));

// An error in the words of the page: fields have the names that the user sees.
function inWords(error) {
  if (error instanceof TypeError) return say("unreachable");
  const known = { 401: "wrongKey", 429: "busy", 504: "slow" }[error.status];
  if (known) return say(known);
  const detail = error.message.replace(/^inputs\[\d+\]:\s*/, "").replace(/^inputs(\[\d+\]|\.\d+)\.(\w+):?/, (_, at, field) => `“${say(field)}”`);
  const empty = detail.match(/^(?:the )?(\w+) is empty$/);
  return empty ? say("empty")(say(empty[1])) : detail;
}

async function working(form, button, status, box, work, clear) {
  const number = ++requests[form];
  const newest = () => requests[form] === number;
  button.setAttribute("aria-busy", "true"); // not disabled: a click during a request replaces that request
  box.setAttribute("aria-busy", "true");
  status.className = "";
  status.textContent = say("wait");
  const began = performance.now();
  try {
    await work(newest);
    if (newest()) status.textContent = say("took")(((performance.now() - began) / 1000).toFixed(2));
  } catch (error) {
    if (!newest()) return;
    clear(); // an old answer next to an error would look like the answer
    status.className = "problem";
    status.textContent = inWords(error);
  } finally {
    if (newest()) for (const element of [button, box]) element.removeAttribute("aria-busy");
  }
}

// -------------------------------------------------------------------------------------------------------------- form

const kindOf = (model) => (model.task === "classify" && model.fields.some(({ name }) => name === "pair") ? "pairs" : model.task);
const taskName = (model) => say("tasks")[kindOf(model)]?.[0] ?? model.task;

// Examples in the page's language, or in one that the model can read.
function examplesOf(model) {
  const ofTask = EXAMPLES[kindOf(model)];
  const own = Object.fromEntries(model.fields.map(({ name, example }) => [name, example]));
  const found = ofTask?.[model.languages.includes(language) ? language : model.languages[0]] ?? [own];
  const masked = (value) => (typeof value === "string" && model.mask ? value.replaceAll("[MASK]", model.mask) : value);
  return found.map((example) => Object.fromEntries(Object.entries(example).map(([name, value]) => [name, masked(value)])));
}

const unchanged = (areas) => [...areas].every((area) => area.value === area.defaultValue);
const exampleShown = () => unchanged($("fields").querySelectorAll("textarea"));

// The page opens with, and follows a change of language to, a model that reads the language.
function followLanguage(id) {
  const model = chosen(id);
  const reads = ({ languages }) => languages.includes(language);
  if (!model || reads(model)) return;
  const names = [...$(id).options].map(({ value }) => value);
  const other = models.find((each) => names.includes(each.name) && each.task === model.task && reads(each));
  if (other) $(id).value = other.name;
}

const written = (value) => (Array.isArray(value) ? value.join("\n") : value || "");

function showForm() {
  const model = chosen();
  const examples = examplesOf(model);
  const title = (example) => written(example.question || example.text);
  $("about").textContent = say("tasks")[kindOf(model)]?.[1].replace("[MASK]", model.mask) ?? "";
  $("examples").setAttribute("aria-label", say("examples"));
  $("examples").replaceChildren(make("span", { className: "note" }, say("examples")), ...examples.map((example) =>
    make("button", { type: "button", title: title(example), onclick: () => { write(example); predict().then(showResult); } }, title(example))));
  // Text that the user changed is kept; an unchanged example is replaced.
  const areas = [...$("fields").querySelectorAll("textarea")].filter((area) => !unchanged([area]));
  const kept = Object.fromEntries(areas.map((area) => [area.name, area.value]));
  $("fields").replaceChildren(...model.fields.map(({ name, required }) => {
    const rows = name === "context" ? 6 : name === "question" ? 1 : 4;
    const area = make("textarea", { name, rows, required, defaultValue: written(examples[0][name]) });
    if (name in kept) area.value = kept[name];
    return make("label", {}, say(name), area);
  }));
}

function write(example) {
  for (const area of $("fields").querySelectorAll("textarea")) area.value = area.defaultValue = written(example[area.name]);
}

function input(model) {
  const item = {};
  for (const { name, required, list } of model.fields) {
    const value = $("fields").querySelector(`[name=${name}]`).value;
    const lines = value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (required && !value.trim()) throw new Problem(422, say("empty")(say(name)));
    if (name === "options" && lines.length < 2) throw new Problem(422, say("few")(say(name)));
    if (list && lines.length) item[name] = lines;
    else if (!list && value.trim()) item[name] = value;
  }
  if (model.mask && !item.text.includes(model.mask)) throw new Problem(422, say("noMask")(model.mask));
  return item;
}

function predict() {
  const model = chosen();
  return working("try", $("run"), $("status"), $("result"), async (newest) => {
    const item = input(model);
    const answer = await ask(model.task, { model: model.name, inputs: [item] });
    if (!newest()) return;
    last = { model, item, result: answer.results[0] };
    drawResult($("result"), { ...last, say });
  }, () => { last = null; $("result").replaceChildren(); });
}

function explain() {
  const body = { model: $("explore-model").value, text: $("explore-text").value };
  if ($("explore-against").value) body.against = $("explore-against").value;
  return working("explore", $("explore-run"), $("explore-status"), $("explorer"), async (newest) => {
    if (!body.text.trim()) throw new Problem(422, say("empty")(say("text")));
    // The server explains one text at a time, so a new request waits for the last one.
    const answer = explained.then(() => newest() && ask("explain", body));
    explained = answer.catch(() => {});
    const data = await answer;
    if (newest()) explorer = draw($("explorer"), data, { language, title: false });
  }, () => { explorer = null; $("explorer").replaceChildren(); });
}

// -------------------------------------------------------------------------------------------------------------- page

function speak() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const element of document.querySelectorAll("[data-say]")) element.textContent = say(element.dataset.say);
  $("language").textContent = language === "zh" ? "English" : "中文";
  $("language").lang = language === "zh" ? "en" : "zh";
  if (!models.length) return;
  for (const option of $("model").options) option.textContent = `${option.value} · ${taskName(models.find(({ name }) => name === option.value))}`;
  if (exampleShown()) followLanguage("model");
  showForm();
  if (last) drawResult($("result"), { ...last, say });
  $("explore-against").firstChild.textContent = say("alone");
  if (explorer) explorer.speak(language);
  if (unchanged([$("explore-text")])) {
    followLanguage("explore-model");
    writeExplored();
  }
}

function writeExplored() {
  const reads = chosen("explore-model")?.languages ?? [];
  $("explore-text").value = $("explore-text").defaultValue = EXPLORED[reads.includes(language) ? language : reads[0]] ?? "";
}

function open(tab) {
  for (const other of ["try", "explore"]) {
    $(other).hidden = other !== tab;
    $(`tab-${other}`).setAttribute("aria-pressed", String(other === tab));
  }
  if (tab === "explore" && !explorer) explain();
}

// On a phone, the result is below the form.
const showResult = () => $("result").parentElement.scrollIntoView({ block: "nearest" });

$("form").addEventListener("submit", (event) => { event.preventDefault(); predict().then(showResult); });
$("explore-form").addEventListener("submit", (event) => { event.preventDefault(); explain(); });
for (const form of ["form", "explore-form"]) {
  $(form).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $(form).requestSubmit();
  });
}
$("model").addEventListener("change", () => { showForm(); predict(); });
$("explore-model").addEventListener("change", () => {
  if (unchanged([$("explore-text")])) writeExplored();
  explain();
});
$("explore-against").addEventListener("change", explain);
$("language").addEventListener("click", () => {
  language = language === "zh" ? "en" : "zh";
  localStorage.setItem("language", language);
  const examples = [exampleShown(), (explorer || !$("explore").hidden) && unchanged([$("explore-text")])];
  speak();
  if (examples[0]) predict(); // the example is another one now
  if (examples[1]) explain();
});
for (const tab of ["try", "explore"]) $(`tab-${tab}`).addEventListener("click", () => { location.hash = tab; });
addEventListener("hashchange", () => open(location.hash === "#explore" && !$("tab-explore").hidden ? "explore" : "try"));

const option = (model) => make("option", { value: model.name }, model.name);

speak();
ask("models").then((found) => {
  models = found;
  $("model").replaceChildren(...models.map(option));
  const explained = models.filter((model) => model.explains);
  $("tab-explore").hidden = !explained.length;
  $("explore-model").replaceChildren(...explained.map(option));
  $("explore-against").replaceChildren(make("option", { value: "" }, say("alone")), ...explained.map(option));
  speak();
  predict();
  if (location.hash === "#explore" && explained.length) open("explore");
}).catch((error) => { $("status").className = "problem"; $("status").textContent = inWords(error); });
