// The page: a form for each task, drawings of the results, and the attention explorer. No libraries.
// The fields of a task and their examples come from /models. A result is drawn by its keys, or else shown as JSON.

const WORDS = {
  en: { try: "Try", explore: "Attention", api: "API", model: "Model", run: "Predict", text: "Text", pair: "Second text",
        labels: "Labels, one per line", question: "Question", context: "Context", options: "Options, one per line",
        show: "Show attention", against: "Compare with", nothing: "no entities found", none: "no answer in the text", ms: "ms",
        key: "API key", value: "Value", numbers: "numbers, starting with", wait: "…", alone: "(none)" },
  zh: { try: "试用", explore: "注意力", api: "接口", model: "模型", run: "预测", text: "文本", pair: "第二段文本",
        labels: "标签（每行一个）", question: "问题", context: "上下文", options: "选项（每行一个）",
        show: "显示注意力", against: "对比模型", nothing: "没有找到实体", none: "文中没有答案", ms: "毫秒",
        key: "API 密钥", value: "数值", numbers: "个数，前几个为", wait: "…", alone: "（无）" },
};

const $ = (id) => document.getElementById(id);
let language = localStorage.getItem("language") || (navigator.language.startsWith("zh") ? "zh" : "en");
let models = [];
let last = null; // the last result, drawn again when the language changes

const say = (word) => WORDS[language][word] || word;

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

async function ask(path, body) {
  const headers = { "content-type": "application/json" };
  const key = sessionStorage.getItem("key");
  if (key) headers["x-api-key"] = key;
  const answer = await fetch(path, body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) });
  if (answer.status === 401) {
    const given = prompt(say("key"));
    if (given) { sessionStorage.setItem("key", given); return ask(path, body); }
  }
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error || answer.statusText);
  return data;
}

function speak() {
  translateExplorer();
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const element of document.querySelectorAll("[data-say]")) element.textContent = say(element.dataset.say);
  $("language").textContent = language === "zh" ? "English" : "中文";
  $("language").lang = language === "zh" ? "en" : "zh";
  if (models.length) form();
  if (last) drawResult(last.item, last.result);
}

// The explorer switches its language with its own button, hidden here. The button's lang is the language it switches to.
function translateExplorer() {
  const button = document.querySelector("#explorer .language");
  if (button && button.lang === language) button.click();
}

const chosen = () => models.find((model) => model.name === $("model").value);

// When another model is chosen, text that the user changed is kept, and an unchanged example is replaced.
function form() {
  const areas = [...$("fields").querySelectorAll("textarea")].filter((area) => area.value !== area.defaultValue);
  const kept = Object.fromEntries(areas.map((area) => [area.name, area.value]));
  $("fields").replaceChildren(...chosen().fields.map(({ name, required, list, example }) => {
    const rows = name === "context" ? 6 : name === "question" ? 1 : 3;
    const area = make("textarea", { name, rows, required, defaultValue: list && example ? example.join("\n") : example });
    if (name in kept) area.value = kept[name];
    return make("label", {}, say(name), area);
  }));
}

function input() {
  const item = {};
  for (const { name, required, list } of chosen().fields) {
    const value = $("fields").querySelector(`[name=${name}]`).value;
    if (list) item[name] = value.split("\n").map((line) => line.trim()).filter(Boolean);
    else if (value.trim() || required) item[name] = value;
  }
  return item;
}

// ------------------------------------------------------------------------------------------------------- results

const percent = (score) => `${(100 * score).toFixed(1)} %`;

function bar(name, share, shown = percent(share)) {
  const fill = make("i");
  fill.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  return make("div", { className: "score" }, make("span", {}, name), make("span", {}, fill), make("span", {}, shown));
}

function marked(text, spans) {
  const letters = [...text]; // offsets count characters, as in Python, not UTF-16 units
  const box = make("p", { className: "text" });
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < at) continue;
    box.append(letters.slice(at, span.start).join(""));
    const note = span.type ? [make("small", {}, span.type)] : [];
    box.append(make("mark", { title: percent(span.score) }, letters.slice(span.start, span.end).join(""), ...note));
    at = span.end;
  }
  box.append(letters.slice(at).join(""));
  return box;
}

// A key of the result -> its drawing. The first key that the result has decides.
const DRAW = {
  labels: (item, result) => result.scores.slice(0, 20)
    .map((label) => bar((result.labels.includes(label.label) ? "✓ " : "") + label.label, label.score)),
  entities: (item, result) => [marked(item.text, result.entities), ...(result.entities.length ? [] : [make("p", {}, say("nothing"))])],
  answers: (item, result) => [
    marked(item.context, result.answer ? result.answers.slice(0, 1) : []),
    ...result.answers.map((answer) => bar(answer.text, answer.score)), bar(say("none"), result.no_answer),
  ],
  option: (item, result) => item.options.map((option, n) => bar((n === result.index ? "✓ " : "") + option, result.scores[n])),
  masks: (item, result) => result.masks.flatMap((mask, n) => [
    make("h3", {}, `[MASK] ${n + 1}`), ...mask.map((candidate) => bar(candidate.token, candidate.probability)),
  ]),
  score: (item, result) => [make("p", {}, `${say("value")}: ${result.score.toFixed(4)}`)],
  embedding: (item, result) => [make("p", {}, `${result.embedding.length} ${say("numbers")} ` +
    result.embedding.slice(0, 8).map((x) => x.toFixed(3)).join(", "))],
};

function drawResult(item, result) {
  last = { item, result };
  const key = Object.keys(DRAW).find((name) => name in result);
  $("result").replaceChildren(...(key ? DRAW[key](item, result) : [make("pre", {}, JSON.stringify(result, null, 1))]));
}

// -------------------------------------------------------------------------------------------------------- working

async function working(button, status, work) {
  button.disabled = true;
  status.className = "";
  status.textContent = say("wait");
  const began = performance.now();
  try {
    await work();
    status.textContent = `${Math.round(performance.now() - began)} ${say("ms")}`;
  } catch (error) {
    status.className = "problem";
    status.textContent = error.message;
  } finally {
    button.disabled = false;
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const { task, name } = chosen();
  const item = input();
  working($("run"), $("status"), async () => {
    const answer = await ask(task, { model: name, inputs: [item] });
    drawResult(item, answer.results[0]);
  });
});
$("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("model").addEventListener("change", () => { last = null; $("result").replaceChildren(); form(); });
$("language").addEventListener("click", () => {
  language = language === "zh" ? "en" : "zh";
  localStorage.setItem("language", language);
  speak();
});
for (const tab of ["try", "explore"]) {
  $(`tab-${tab}`).addEventListener("click", () => {
    for (const other of ["try", "explore"]) {
      $(other).hidden = other !== tab;
      $(`tab-${other}`).setAttribute("aria-pressed", String(other === tab));
    }
  });
}

$("explore-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const body = { model: $("explore-model").value, text: $("explore-text").value };
  if ($("explore-against").value) body.against = $("explore-against").value;
  working($("explore-run"), $("explore-status"), async () => {
    const data = await ask("explain", body);
    $("explorer").replaceChildren();
    draw($("explorer"), data); // explain/page/explorer.js
    translateExplorer();
  });
});

const option = (model) => make("option", { value: model.name }, model.task ? `${model.name} · ${model.task}` : model.name);

ask("models").then((found) => {
  models = found;
  $("model").replaceChildren(...models.map(option));
  const explained = models.filter((model) => model.explains);
  $("tab-explore").hidden = !explained.length;
  $("explore-model").replaceChildren(...explained.map(option));
  $("explore-against").replaceChildren(make("option", { value: "" }, say("alone")), ...explained.map(option));
  speak();
}).catch((error) => { $("status").className = "problem"; $("status").textContent = error.message; speak(); });
