// The live page: hears the feed, draws the charts, turns the knobs. No dependencies; see servesim/live/feed.py for the
// events and servesim/live/figures.py for what a chart is.
"use strict";

const SPANS_S = [30, 60, 120];  // of time on a chart: the least that holds what was seen, the last at most
const SPAN_S = SPANS_S[SPANS_S.length - 1];
const SVG = "http://www.w3.org/2000/svg";
const RETRY_MS = 1000;
const element = (id) => document.getElementById(id);

const seen = { samples: [], marks: [], charts: [], sources: [], id: null };
let controls = null;            // {limits, state} of a server that can be steered

// Words and numbers

function shown(value, unit, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (unit === "s") {
    if (value < 1 - 0.5 * 10 ** -digits) return `${Number((value * 1e3).toPrecision(digits))} ms`;
    return value < 10 ** (digits - 1) ? `${value.toPrecision(digits)} s` : `${Math.round(value)} s`;
  }
  if (unit === "share") return `${Math.round(value * 100)} %`;
  if (unit === "requests") return Math.round(value).toLocaleString("en");
  const decimals = value >= 100 || value === 0 ? 0 : value >= 1 ? 1 : 2;
  const text = value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return unit === "/s" ? `${text}/s` : `${text} ${unit}`;
}

function node(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function part(name, text = null, className = "") {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// A number on an axis: no more digits than it needs.
function marked(value, unit) {
  if (unit === "share") return `${value * 100} %`;
  if (unit === "s") return value < 1 ? `${Number((value * 1e3).toPrecision(3))} ms` : `${Number(value.toPrecision(3))} s`;
  return Number(value.toPrecision(3)).toLocaleString("en");
}

// A number at or above `value` that is round, and so is its half.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 4, 6, 10]) if (step * power >= value * 0.999999) return step * power;
  return 10 * power;
}

// Charts

class Chart {
  constructor(about, sources) {
    this.about = about;
    this.lines = [];
    for (const [place, source] of sources.entries()) {
      for (const [number, [key, label]] of Object.entries(about.lines).entries()) {
        const name = sources.length > 1 ? `${source} ${label}` : label;
        this.lines.push({ source, key, name, classes: `line l${number}${place ? " other" : ""}` });
      }
    }
    this.figure = part("figure");
    const caption = part("figcaption");
    const heading = part("h2", about.title);
    this.legend = part("dl", null, "legend");
    for (const line of this.lines) {
      const row = part("div");
      const term = part("dt");
      const swatch = node("svg", { class: "swatch", viewBox: "0 0 22 8", "aria-hidden": "true" });
      swatch.append(node("line", { x1: 0, x2: 22, y1: 4, y2: 4, class: line.classes }));
      term.append(swatch, line.name);
      line.value = part("dd", "–");
      line.row = row;
      row.append(term, line.value);
      this.legend.append(row);
    }
    caption.append(heading, this.legend);
    this.svg = node("svg", { role: "img" });
    this.figure.append(caption, this.svg);
    this.hover = null;
    this.svg.addEventListener("pointermove", (event) => {
      this.hover = (event.clientX - this.svg.getBoundingClientRect().left);
      this.draw();
    });
    this.svg.addEventListener("pointerleave", () => { this.hover = null; this.draw(); });
  }

  draw() {
    const width = this.svg.clientWidth || 320, height = this.svg.clientHeight || 170;
    const box = { left: 52, right: width - 6, top: 16, bottom: height - 20 };
    const end = seen.samples.length ? seen.samples[seen.samples.length - 1].at_s : Date.now() / 1000;
    const since = seen.samples.length ? end - seen.samples[0].at_s : 0;
    const span = SPANS_S.find((each) => each >= since) || SPAN_S;
    const start = end - span;
    const x = (at) => box.left + (box.right - box.left) * (at - start) / span;
    const samples = seen.samples.filter((sample) => sample.at_s >= start);
    let most = 0;
    for (const { source, key } of this.lines) {
      for (const sample of samples) most = Math.max(most, (sample[source] || {})[key] || 0);
    }
    const unit = this.about.unit;
    const floor = { "tok/s": 10, s: 0.01, share: 1, requests: 4, "/s": 1 }[unit] || 1;
    const top = unit === "share" ? 1 : roundUp(Math.max(most, floor));
    const y = (value) => box.bottom - (box.bottom - box.top) * Math.min(value, top) / top;
    const drawn = [];
    for (const share of [0, 0.5, 1]) {
      const at = y(top * share);
      drawn.push(node("line", { x1: box.left, x2: box.right, y1: at, y2: at, class: "grid" }));
      const label = share ? marked(top * share, unit) : "0";
      drawn.push(node("text", { x: box.left - 6, y: at + 4, "text-anchor": "end" }, label));
    }
    for (const back of [span, span / 2, 0]) {
      const anchor = back === span ? "start" : back ? "middle" : "end";
      const label = back ? `${back} s ago` : "now";
      drawn.push(node("text", { x: x(end - back), y: height - 4, "text-anchor": anchor }, label));
    }
    drawn.push(...this.marks(start, end, x, box));
    for (const line of this.lines) {
      const pieces = [];
      let open = false, last = -Infinity;
      for (const sample of samples) {
        const value = (sample[line.source] || {})[line.key];
        if (value === null || value === undefined) { open = false; continue; }
        if (sample.at_s - last > 3) open = false;
        last = sample.at_s;
        pieces.push(`${open ? "L" : "M"}${x(sample.at_s).toFixed(1)} ${y(value).toFixed(1)}`);
        if (!open) pieces.push("h0");         // a lone point is seen too
        open = true;
      }
      if (pieces.length) drawn.push(node("path", { d: pieces.join(""), class: line.classes }));
    }
    let told = samples[samples.length - 1];
    if (this.hover !== null && samples.length) {
      const at = start + span * (this.hover - box.left) / (box.right - box.left);
      told = samples.reduce((best, each) => Math.abs(each.at_s - at) < Math.abs(best.at_s - at) ? each : best);
      drawn.push(node("line", { x1: x(told.at_s), x2: x(told.at_s), y1: box.top, y2: box.bottom, class: "cursor" }));
    }
    const words = [];
    for (const line of this.lines) {
      const known = samples.some((sample) => ((sample[line.source] || {})[line.key] ?? null) !== null);
      line.row.hidden = !known && this.lines.length > 1 && samples.length > 4;
      line.value.textContent = shown(told && (told[line.source] || {})[line.key], unit);
      words.push(`${line.name} ${line.value.textContent}`);
    }
    if (!samples.length) drawn.push(node("text", { x: width / 2, y: height / 2, class: "empty" }, "no data yet"));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", `${this.about.title}, the last two minutes: ${words.join(", ")}`);
    this.svg.replaceChildren(...drawn);
  }

  // Moments at which something was changed; their words stand above the plot, those of the latest first.
  marks(start, end, x, box) {
    const drawn = [];
    let free = box.right;                         // there is room to the left of it
    for (const mark of [...seen.marks].reverse()) {
      if (mark.at_s < start || mark.at_s > end) continue;
      const at = x(mark.at_s), room = mark.text.length * 7;
      drawn.push(node("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, class: "event" }));
      const from = Math.max(box.left, Math.min(at - room / 2, free - room));
      if (from + room > free || from + room < at) continue;
      drawn.push(node("text", { x: from, y: box.top - 5, class: "event-text" }, mark.text));
      free = from - 4;
    }
    return drawn;
  }
}

// The figures of the moment, in one row that stays in sight

const STRIP = [
  ["output_tokens_per_s", "tok/s", "tok/s"], ["ttft_mean_s", "s", "TTFT"], ["tpot_mean_s", "s", "TPOT"],
  ["running", "requests", "running"], ["waiting", "requests", "waiting"], ["kv_usage", "share", "KV cache"],
];
const tiles = STRIP.map(([, , label]) => {
  const row = part("div"), value = part("dd", "–");
  row.append(part("dt", label), value);
  element("strip").append(row);
  return value;
});

function drawStrip() {
  const last = seen.samples[seen.samples.length - 1] || {};
  for (const [place, [key, unit]] of STRIP.entries()) {
    const known = seen.sources.map((source) => (last[source] || {})[key]).find((value) => (value ?? null) !== null);
    tiles[place].textContent = shown(known, unit, 2).replace(" tok/s", "");
  }
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawStrip();
    for (const chart of seen.charts) chart.draw();
  });
}

// Controls

const SLIDERS = {
  rate: { group: "traffic", unit: "/s" },
  prompt_tokens: { group: "traffic", unit: "tokens" },
  output_tokens: { group: "traffic", unit: "tokens" },
  max_num_seqs: { group: "engine", unit: "sequences" },
  max_num_batched_tokens: { group: "engine", unit: "tokens" },
};
const SWITCHES = { on: "traffic", shared: "traffic", prefix_caching: "engine" };
const STEPS = 100;
const WAIT_MS = { traffic: 150, engine: 600 };    // a slider on its way is not yet a wish
const timers = { traffic: null, engine: null };
const wishes = { traffic: {}, engine: {} };

// Sliders are logarithmic: the position is a share of the way from the least to the most.
function toPosition(name, value) {
  const [least, most] = controls.limits[name];
  const clamped = Math.min(most, Math.max(least, value));
  return Math.round(STEPS * Math.log(clamped / least) / Math.log(most / least));
}

function toValue(name, position) {
  const [least, most] = controls.limits[name];
  const value = least * (most / least) ** (position / STEPS);
  if (name === "rate") return Number(value.toPrecision(2));
  if (Number(position) === STEPS) return most;
  const step = value >= 1000 ? 50 : value >= 100 ? 5 : 1;
  return Math.max(least, Math.round(value / step) * step);
}

function tell(name, value) {
  const text = SLIDERS[name].unit === "/s" ? `${value} a second` : `${value.toLocaleString("en")} ${SLIDERS[name].unit}`;
  element(`${name}-value`).textContent = text;
  element(name).setAttribute("aria-valuetext", text);
}

function wish(group, name, value) {
  wishes[group][name] = value;
  clearTimeout(timers[group]);
  timers[group] = setTimeout(() => {
    timers[group] = null;
    const asked = wishes[group];
    wishes[group] = {};
    steer({ [group]: asked });
  }, WAIT_MS[group]);
}

async function steer(asked) {
  let answer = null, problem = "";
  try {
    const response = await fetch("live/control", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked),
    });
    answer = await response.json();
    if (!response.ok) problem = answer.error || `HTTP ${response.status}`;
  } catch (error) {
    problem = "the server does not answer";
  }
  notice(problem);
  if (!problem) show(answer);
  else if (controls) show(controls.state);
}

function notice(text) {
  element("notice").textContent = text;
  element("notice").hidden = !text;
}

function show(state) {
  controls.state = state;
  for (const [name, { group }] of Object.entries(SLIDERS)) {
    if (timers[group] !== null) continue;         // the person is at it
    element(name).value = toPosition(name, state[group][name]);
    tell(name, state[group][name]);
  }
  for (const [name, group] of Object.entries(SWITCHES)) {
    if (timers[group] === null) element(name).checked = state[group][name];
  }
  element("story").textContent = state.story;
  const next = state.scenario === "incident" ? "fix" : state.scenario === "fixed" ? null : "incident";
  for (const id of ["incident", "fix"]) element(id).classList.toggle("next", id === next && state.can_happen);
  element("incident").disabled = !state.can_happen;
  element("fix").disabled = state.engine.prefix_caching;
  const shared = state.shared_tokens;
  element("traffic-hint").textContent = state.refusal
    ? `${state.refused.toLocaleString("en")} turned away: ${state.refusal}`
    : shared ? `The first ${shared.toLocaleString("en")} tokens of a prompt are one of two system prompts.`
      : "Every prompt is its own.";
}

function setUpControls() {
  for (const [name, { group }] of Object.entries(SLIDERS)) {
    const slider = element(name);
    Object.assign(slider, { min: 0, max: STEPS, step: 1 });
    slider.addEventListener("input", () => {
      const value = toValue(name, slider.value);
      tell(name, value);
      wish(group, name, value);
    });
  }
  for (const [name, group] of Object.entries(SWITCHES)) {
    element(name).addEventListener("change", (event) => wish(group, name, event.target.checked));
  }
  for (const id of ["incident", "fix", "calm"]) element(id).addEventListener("click", () => steer({ scenario: id }));
}

// The feed

function status(state, text) {
  element("status").dataset.state = state;
  element("status").textContent = text;
}

function hello(told) {
  element("title").textContent = told.title;
  element("about").textContent = told.about || "\u00a0";
  document.title = `${told.title} – servesim live`;
  element("footer").textContent =
    `servesim ${told.version}. Rates and latencies are those of the last ${told.window_s} seconds.` +
    (told.kind === "serve" ? "" : " A p95 of the server's is the upper bound of its bucket.");
  if (seen.id !== null && seen.id !== told.id) seen.marks.push({ at_s: Date.now() / 1000, text: "server restarted" });
  const before = seen.id === told.id || !told.history.length ? Infinity : told.history[0].at_s;
  if (seen.id === told.id) {                      // we were away: what we missed is in the history
    seen.samples = told.history;
    seen.marks = told.marks;
  } else {
    seen.samples = seen.samples.filter((sample) => sample.at_s < before).concat(told.history);
    seen.marks = seen.marks.concat(told.marks);
  }
  const layout = JSON.stringify([told.charts, told.sources]);
  if (seen.layout !== layout) {
    seen.layout = layout;
    seen.charts = told.charts.map((chart) => new Chart(chart, told.sources));
    element("charts").replaceChildren(...seen.charts.map((chart) => chart.figure));
  }
  seen.id = told.id;
  seen.sources = told.sources;
  controls = told.controls;
  element("controls").hidden = controls === null;
  document.querySelector("main").classList.toggle("steered", controls !== null);
  if (controls) show(controls.state);
  notice(told.notice || "");
  status("live", "live");
  redraw();
}

let over = false;
function listen() {
  const feed = new EventSource("live/feed");
  const on = (name, hear) => feed.addEventListener(name, (event) => hear(JSON.parse(event.data)));
  on("hello", (told) => { over = false; hello(told); });
  on("sample", (told) => {
    seen.samples.push(told);
    while (seen.samples.length > 2 && seen.samples[1].at_s < told.at_s - SPAN_S) seen.samples.shift();
    redraw();
  });
  on("mark", (told) => { seen.marks.push(told); redraw(); });
  on("state", (told) => { if (controls) show(told); });
  on("notice", (told) => notice(told.text));
  on("end", () => { over = true; });
  feed.addEventListener("error", () => {
    status(over ? "over" : "reconnecting", over ? "the run is over" : "reconnecting");
    if (feed.readyState === EventSource.CLOSED) setTimeout(listen, RETRY_MS);     // refused: the browser has given up
  });
}

setUpControls();
listen();
new ResizeObserver(redraw).observe(element("charts"));
