// Drawings of results. Texts are shown from the characters of the input, by the offsets of the result.

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const percent = (score) => `${(100 * score).toFixed(1)} %`;

function bar(name, share, shown = percent(share), tag = "div", properties = {}) {
  const fill = make("i");
  fill.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  const { className = "", ...others } = properties;
  return make(tag, { ...others, className: `score ${className}` },
    make("span", {}, name), make("span", { className: "bar" }, fill), make("span", {}, shown));
}

const chosenBar = (chosen, name, share) => bar((chosen ? "✓ " : "") + name, share, undefined, undefined, chosen ? { className: "chosen" } : {});

// The text with marks; draw(span, characters) makes the mark of a span.
function marked(text, spans, draw) {
  const letters = [...text]; // offsets count characters, as in Python, not UTF-16 units
  const box = make("p", { className: "text" });
  let at = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    if (span.start < at) continue;
    box.append(letters.slice(at, span.start).join(""));
    box.append(draw(span, letters.slice(span.start, span.end).join("")));
    at = span.end;
  }
  box.append(letters.slice(at).join(""));
  return box;
}

const headline = (text, note) => make("p", { className: "headline" }, text, " ", make("small", {}, note));

function labels({ result }) {
  const best = result.scores.filter(({ label }) => result.labels.includes(label));
  const first = best.length ? [headline(best.map(({ label }) => label).join(", "), best.map(({ score }) => percent(score)).join(", "))] : [];
  const bars = result.scores.slice(0, 20).map(({ label, score }) => chosenBar(result.labels.includes(label), label, score));
  return [...first, ...bars];
}

// Colours follow the order of the model's labels, so that a type keeps its colour from text to text.
function entities({ model, item, result, say }) {
  const types = [...new Set([...model.labels.map((label) => label.replace(/^[A-Z]-/, "")).filter((label) => label !== "O"),
    ...result.entities.map(({ type }) => type)])];
  const hue = (type) => `entity hue-${types.indexOf(type) % 8}`;
  const text = marked(item.text, result.entities, (span, letters) => make("mark", { className: hue(span.type) },
    letters, make("small", {}, `${span.type} ${percent(span.score)}`)));
  return [text, ...(result.entities.length ? [] : [make("p", {}, say("nothing"))])];
}

function answers({ item, result, say }) {
  const best = result.answer ? result.answers.slice(0, 1) : [];
  return [
    best.length ? headline(best[0].text, percent(best[0].score)) : headline(say("none"), percent(result.no_answer)),
    marked(item.context, best, (span, letters) => make("mark", {}, letters)),
    ...result.answers.map((answer) => chosenBar(answer === best[0], answer.text, answer.score)),
    chosenBar(!best.length, say("none"), result.no_answer),
  ];
}

function option({ item, result }) {
  const bars = item.options.map((text, n) => chosenBar(n === result.index, text, result.scores[n]));
  const gap = /[\u3000-\u9fff\uff00-\uffef]$/.test(item.text) ? "" : " "; // Chinese is written without spaces
  return [make("p", { className: "text" }, item.text, gap, make("mark", {}, result.option)), ...bars];
}

// The chosen word of each mask stands in the sentence; a click on another word puts that one there.
function masks({ model, item, result, say }) {
  const around = item.text.split(model.mask);
  const words = result.masks.map((mask) => make("mark", {}, mask[0].token));
  const sentence = make("p", { className: "text" });
  around.forEach((part, n) => sentence.append(part, ...(n < words.length ? [words[n]] : [])));
  const lists = result.masks.flatMap((mask, n) => {
    const rows = mask.map((candidate) => bar(candidate.token, candidate.probability, undefined, "button", {
      type: "button",
      className: "candidate",
      onclick: () => choose(candidate.token),
    }));
    const choose = (token) => {
      words[n].textContent = token;
      rows.forEach((row, i) => row.setAttribute("aria-pressed", mask[i].token === token));
    };
    choose(mask[0].token);
    return [...(result.masks.length > 1 ? [make("h3", {}, say("mask")(n + 1))] : []), ...rows];
  });
  return [sentence, make("p", { className: "note" }, say("choose")), ...lists];
}

function score({ result, say }) {
  const within = result.score >= 0 && result.score <= 1;
  return [headline(result.score.toFixed(2), say("value")), ...(within ? [bar("0", result.score, "1")] : [])];
}

function embedding({ result, say }) {
  const most = Math.max(...result.embedding.map(Math.abs));
  const strip = make("div", { className: "strip", ariaHidden: "true" }, ...result.embedding.slice(0, 128).map((x) => {
    const cell = make("i");
    cell.style.background = `rgb(var(${x > 0 ? "--high" : "--low"}) / ${Math.abs(x) / most})`;
    return cell;
  }));
  const first = result.embedding.slice(0, 8).map((x) => x.toFixed(3)).join(", ");
  return [strip, make("p", {}, `${result.embedding.length} ${say("numbers")} ${first}`)];
}

// A key of the result -> its drawing. The first key that the result has decides.
const DRAW = { labels, entities, answers, option, masks, score, embedding };

// shown: { model, item, result, say }
export function drawResult(box, shown) {
  const key = Object.keys(DRAW).find((name) => name in shown.result);
  const request = { model: shown.model.name, inputs: [shown.item] };
  const code = `POST /${shown.model.task}\n${JSON.stringify(request, null, 1)}\n\n${JSON.stringify(shown.result, null, 1)}`;
  const pre = make("pre", { tabIndex: 0 }, code.length > 6000 ? code.slice(0, 6000) + " …" : code);
  const json = make("details", {}, make("summary", {}, shown.say("json")), pre);
  box.replaceChildren(...(key ? DRAW[key](shown) : []), json);
}
