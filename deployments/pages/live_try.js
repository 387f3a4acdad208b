
// -- server-sent events -----------------------------------------------------------------------------------------------

/** The data of each event of a response, until it ends. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) if (event.startsWith("data: ")) yield event.slice(6);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

async function errorOf(response) {
  const said = (await response.json().catch(() => null))?.error;
  const later = response.headers.get("retry-after");
  return new Error(`${response.status} ${said?.code ?? ""}: ${said?.message ?? response.statusText}` + (later ? ` (again in ${later} s)` : ""));
}

// -- the state, every second ------------------------------------------------------------------------------------------

let heardS = null;

function showStatus(state, text) {
  at("status").dataset.state = state;
  if (at("status").textContent !== text) fill("status", text);
}

let told = null;

/** The state of one of the models that a gateway has told of: the one that is chosen, or the first. */
function ofChosen({ models, ...gateway }) {
  const names = models.map((each) => each.deployment.model), chooser = at("models");
  if (names.join("\n") !== [...chooser.options].map((each) => each.value).join("\n")) {
    fill("models", ...names.map((name) => make("option", "", name)));
  }
  chooser.hidden = names.length < 2;
  at("model").hidden = names.length > 1;
  return { ...gateway, ...models[Math.max(0, names.indexOf(chooser.value))] };
}

function show(message) {
  const state = ofChosen((told = message));
  heardS = nowS();
  history.push({ atS: heardS, state });
  while (history[0].atS < heardS - HISTORY_S) history.shift();
  for (const part of [showAbout, showTiles, showPools, showLines, showLanes, showBounds, showRefusals]) part(state);
  showStatus("live", "live");
}

async function watch() {
  for (;;) {
    try {
      const response = await fetch(`${ROOT}live/events`, { cache: "no-store" });
      if (!response.ok) throw await errorOf(response);
      for await (const state of eventsOf(response)) show(JSON.parse(state));
    } catch (error) {
      showStatus("lost", error instanceof TypeError ? "no answer from the gateway; trying again" : error.message);
      await pause(RETRY_S);
    }
  }
}

// -- the box ----------------------------------------------------------------------------------------------------------

const colour = (stage) => `var(--s${STAGES.indexOf(stage)})`;
let stopping = null;

function asked() {
  const body = {
    model: at("model").textContent, prompt: at("prompt").value, max_tokens: Number(at("max-tokens").value),
    stream: true, stream_options: { include_usage: true }, ...(at("priority").value && { priority: at("priority").value }),
  };
  const headers = { "content-type": "application/json", [BUDGET_HEADER]: "1" };
  const key = at("key").value.trim();
  if (!/^[\x20-\x7e]*$/.test(key)) throw new Error("the API key has a character that no key has: it may have been copied wrongly");
  if (key) headers.authorization = `Bearer ${key}`;
  return { method: "POST", headers, body: JSON.stringify(body), signal: stopping.signal };
}

/** Sends what the box says and tells of every bit of the answer; the times are those of this browser. */
async function send(onText) {
  const startS = nowS(), result = { tokens: null, gateway: "", ttftS: null, tpotS: null, wholeS: null, budget: null };
  const response = await fetch(`${ROOT}v1/completions`, asked());
  if (!response.ok) throw await errorOf(response);
  result.gateway = response.headers.get("x-spillway-gateway") ?? "";
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw new Error(`${event.error.code}: ${event.error.message}`);
    if (event.choices.length) {
      result.ttftS ??= nowS() - startS;
      result.wholeS = nowS() - startS;
      onText(event.choices.map((choice) => choice.text).join(""));
    }
    result.tokens = event.usage?.completion_tokens ?? result.tokens;
    result.budget = event.spillway?.latency_budget_s ?? result.budget;
  }
  if (result.tokens > 1) result.tpotS = (result.wholeS - result.ttftS) / (result.tokens - 1);
  return result;
}

function showFacts({ tokens, gateway, ttftS, tpotS, wholeS }) {
  const facts = { "First token": seconds(ttftS), "Each further": seconds(tpotS), Whole: seconds(wholeS), Tokens: tokens, Gateway: gateway };
  fill("facts", ...Object.entries(facts).map(([name, value]) => make("div", "", make("dt", "", name), make("dd", "", value ?? "–"))));
  at("facts").hidden = false;
}

function stack(title, spent) {
  const wholeS = sum(spent.map(([, value]) => value)), row = make("div", "stack");
  row.setAttribute("role", "img");
  row.setAttribute("aria-label", `${title}: ${spent.map(([stage, value]) => `${stage} ${seconds(value)}`).join(", ")}`);
  for (const [stage, value] of spent) {
    const part = make("i");
    part.style.width = `${(100 * value) / wholeS}%`;
    part.style.background = colour(stage);
    part.title = `${stage.replaceAll("_", " ")}: ${seconds(value)}`;
    row.append(part);
  }
  return make("div", "", make("div", "stack-label", make("span", "", title), make("span", "", seconds(wholeS))), row);
}

function showBudget(budget) {
  at("budget").hidden = !budget;
  if (!budget) return;
  const spent = STAGES.filter((stage) => budget[stage] > 0).map((stage) => [stage, budget[stage]]);
  const first = spent.filter(([stage]) => TO_FIRST_TOKEN.includes(stage));
  fill("budget-bars", stack("To the first token", first), stack("Whole answer", spent));
  const wholeS = sum(spent.map(([, value]) => value));
  fill("budget-stages", ...spent.map(([stage, value]) => {
    const swatch = make("span", "swatch");
    swatch.style.background = colour(stage);
    return make("tr", "", make("td", "", swatch, stage.replaceAll("_", " ")), cell(seconds(value), "n"), cell(percent(value / wholeS), "n"));
  }));
}

async function sendOne() {
  const answer = at("answer");
  answer.replaceChildren();
  answer.hidden = false;
  answer.setAttribute("aria-busy", "true");
  try {
    const result = await send((text) => {
      const follows = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
      answer.append(text);
      if (follows) answer.scrollTop = answer.scrollHeight;
    });
    showFacts(result);
    showBudget(result.budget);
  } finally {
    answer.hidden = !answer.textContent;
    answer.setAttribute("aria-busy", "false");
  }
}

/** As many as a browser sends at once over HTTP/1.1 beside the one that watches. */
async function sendBurst() {
  const rows = Array.from({ length: NUM_BURST }, (_, number) => make("div", "", make("span", "aside", number + 1), make("span", "", "waits")));
  fill("burst-results", ...rows);
  at("burst-results").hidden = false;
  await Promise.all(rows.map(async (row) => {
    let length = 0;
    try {
      const result = await send((text) => fillRow(row, `${(length += text.length)} characters so far`));
      fillRow(row, `first token ${seconds(result.ttftS)}, whole ${seconds(result.wholeS)}, ${result.tokens} tokens`);
    } catch (error) {
      fillRow(row, error.name === "AbortError" ? "stopped" : error.message);
    }
  }));
}

function fillRow(row, text) {
  row.lastChild.textContent = text;
}

async function run(work) {
  if (!at("try").reportValidity() || stopping) return;
  stopping = new AbortController();
  for (const id of ["answer", "trouble", "facts", "budget", "burst-results"]) at(id).hidden = true;
  at("send").disabled = at("burst").disabled = true;
  at("stop").disabled = false;
  try {
    await work();
  } catch (error) {
    fill("trouble", error.name === "AbortError" ? "Stopped: the gateway gives the request's place away." : error.message);
    at("trouble").hidden = false;
  } finally {
    stopping = null;
    at("send").disabled = at("burst").disabled = false;
    at("stop").disabled = true;
  }
}

at("models").addEventListener("change", () => {
  history.length = 0;
  for (const lines of Object.values(series)) for (const points of lines) points.length = 0;
  show(told);
});
at("try").addEventListener("submit", (event) => {
  event.preventDefault();
  run(sendOne);
});
at("burst").addEventListener("click", () => run(sendBurst));
at("stop").addEventListener("click", () => stopping?.abort());
for (const link of document.querySelectorAll("footer a")) link.href = ROOT + link.getAttribute("href");
setInterval(() => {
  const isQuiet = heardS !== null && nowS() - heardS > QUIET_S;
  if (isQuiet && at("status").dataset.state === "live") showStatus("lost", "nothing heard for some seconds");
}, 1000);
watch();
