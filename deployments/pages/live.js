"use strict";

const HISTORY_S = 120, SHORTEST_S = 30, RATE_S = 10, SLO_S = 60, MAX_REPLICAS = 48, NUM_BURST = 5, MAX_REFUSALS = 50;
const QUIET_S = 5, RETRY_S = 3;
const ROOT = location.pathname.replace(/\/?$/, "/");
const BUDGET_HEADER = "x-spillway-latency-budget";
const TO_FIRST_TOKEN = ["parse", "tokenize", "classify", "admit", "queue", "dispatch", "prefill", "kv_transfer", "first_token"];
const STAGES = [...TO_FIRST_TOKEN, "decode", "egress", "lost"];
const NULLS = /^(always_admit|never_\w+|no_hedge|none|always_on)$/;

const at = (id) => document.getElementById(id);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const nowS = () => performance.now() / 1000;
const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

// -- elements ---------------------------------------------------------------------------------------------------------

/** An element with a class and what is in it: text or elements. Text is never read as markup. */
function make(tag, name = "", ...inside) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...inside.map((each) => (each instanceof Node ? each : String(each))));
  return element;
}

function fill(id, ...inside) {
  at(id).replaceChildren(...inside);
}

function bar(fraction, label) {
  const meter = make("div", "bar", make("i"));
  meter.setAttribute("role", "meter");
  meter.setAttribute("aria-label", label);
  setBar(meter, fraction);
  return meter;
}

function setBar(meter, fraction) {
  meter.firstChild.style.width = `${100 * Math.min(1, fraction)}%`;
  meter.setAttribute("aria-valuenow", Math.round(100 * fraction));
  meter.dataset.level = fraction >= 0.95 ? "bad" : fraction >= 0.8 ? "fair" : "good";
}

// -- numbers ----------------------------------------------------------------------------------------------------------

const percent = (fraction) =>
  fraction > 0 && fraction < 0.0005 ? "< 0.1 %" : `${(100 * fraction).toFixed(fraction > 0 && fraction < 0.0995 ? 1 : 0)} %`;
const count = (number) => Math.round(number).toLocaleString("en");
const many = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

function seconds(value) {
  if (value === null || !isFinite(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${(1000 * value).toFixed(value < 0.00995 ? 2 : 1)} ms`;
  if (value < 0.9995) return `${(1000 * value).toFixed(0)} ms`;
  if (value < 99.5) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  return duration(value);
}

/** A time that is only known to lie between two bounds. */
const about = (value) => (value === null ? "–" : `≈ ${value < 1 ? `${Number((1000 * value).toPrecision(2))} ms` : `${Number(value.toPrecision(2))} s`}`);

function duration(value) {
  const whole = Math.max(0, Math.floor(value)), minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  if (whole < 60) return `${whole} s`;
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

function rate(perSecond) {
  return perSecond === null ? "–" : perSecond >= 99.5 ? count(perSecond) : perSecond.toFixed(1);
}

// -- what is counted, over time ---------------------------------------------------------------------------------------

const history = [];

/** The state of so many seconds ago, or the oldest there is; null when there is none before the last one. */
function before(ageS) {
  const last = history[history.length - 1];
  return history.find((each) => each !== last && last.atS - each.atS <= ageS + 0.5) ?? null;
}

/** How much something has grown since a state; what has begun since then, or begun anew, counts as nothing. */
function growth(counts, then, now) {
  const old = counts(then.state);
  return sum(Object.entries(counts(now.state)).map(([who, value]) => (who in old ? Math.max(0, value - old[who]) : 0)));
}

function perSecond(counts) {
  const now = history[history.length - 1], then = before(RATE_S);
  return then && growth(counts, then, now) / (now.atS - then.atS);
}

const byGateway = (read) => (state) =>
  Object.fromEntries(Object.entries(state.gateways).map(([name, each]) => [name, read(each)]));
const requests = (...kinds) =>
  byGateway((each) => sum(Object.entries(each.requests).filter(([key]) => kinds.includes(key.split(" ")[0])).map(([, n]) => n)));
const kept = (lane, slo, how) => byGateway((each) => each.slos[lane]?.[slo]?.[how] ?? 0);

function outputTokens(state) {
  const pools = state.pools.filter((pool) => pool.role !== "prefill");
  return Object.fromEntries(pools.flatMap((pool) => pool.replicas.map((each) => [each.id, each.output_tokens])));
}

/** A quantile of the times to the first token in the last seconds, between the bounds of the histogram's buckets. */
function ttft(quantile) {
  const now = history[history.length - 1], then = before(RATE_S);
  const bounds = [...new Set(Object.values(now.state.gateways).flatMap((each) => Object.keys(each.ttft)))];
  bounds.sort((a, b) => (a === "+Inf") - (b === "+Inf") || a - b);
  const grown = bounds.map((le) => (then ? growth(byGateway((each) => each.ttft[le] ?? 0), then, now) : 0));
  const all = grown[grown.length - 1] ?? 0, wanted = quantile * all;
  if (!all) return null;
  const found = grown.findIndex((n) => n >= wanted), low = found ? Number(bounds[found - 1]) : 0;
  if (bounds[found] === "+Inf") return low;
  const below = found ? grown[found - 1] : 0;
  return low + (Number(bounds[found]) - low) * ((wanted - below) / (grown[found] - below));
}

// -- tiles ------------------------------------------------------------------------------------------------------------

const series = { queue: [[]], ttft: [[], []], requests: [[], []], tokens: [[]] };

function spark(svg, lines, label) {
  const top = Math.max(1e-9, ...lines.flatMap((points) => points.map(({ value }) => value ?? 0)));
  const spanS = Math.max(SHORTEST_S, nowS() - lines[0][0].atS);
  svg.setAttribute("viewBox", "0 0 100 38");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(...lines.map((points, number) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", number ? "second" : "first");
    path.setAttribute("d", trace(points, top, spanS));
    return path;
  }));
}

/** A line through what is known; where nothing is, there is none. */
function trace(points, top, spanS) {
  let pen = "M";
  return points.map(({ atS, value }) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const x = 100 * (1 - (nowS() - atS) / spanS), y = 37 - 35 * (value / top), step = `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
    return step;
  }).join("");
}

function tile(name, values, figure, aside) {
  const element = at(`tile-${name}`);
  element.querySelector("[data-figure]").replaceChildren(...figure);
  element.querySelector("[data-aside]").replaceChildren(...aside);
  if (!(name in series)) return;
  series[name].forEach((points, number) => {
    points.push({ atS: nowS(), value: values[number] });
    while (points[0].atS < nowS() - HISTORY_S) points.shift();
  });
  const label = `The last two minutes; now ${element.querySelector("[data-figure]").textContent}`;
  spark(element.querySelector("[data-spark]"), series[name], label);
}

function showTiles(state) {
  const gateways = Object.values(state.gateways), queues = gateways.flatMap((each) => each.queues);
  const workS = sum(queues.map((each) => each.work_s)), waiting = sum(queues.map((each) => each.requests));
  const oldestS = Math.max(0, ...queues.map((each) => each.oldest_s));
  tile("queue", [workS], [seconds(workS)],
    [waiting ? `${many(waiting, "request")} waiting, the oldest for ${seconds(oldestS)}` : "nobody waits at a gateway"]);
  const p50 = ttft(0.5), p99 = ttft(0.99);
  tile("ttft", [p50, p99], [about(p50), " ", make("small", "", "p50")],
    p50 === null ? [`no first token in ${RATE_S} s`] : [make("span", "key", `${about(p99)} p99`), `, over ${RATE_S} s`]);
  const done = perSecond(requests("completed")), missed = perSecond(requests("refused", "failed"));
  const open = sum(gateways.map((each) => each.open));
  tile("requests", [done, missed || null], [rate(done), " ", make("small", "", "answered/s")],
    [make("span", missed ? "bad" : "", `${rate(missed)} refused or failed/s`), `, ${count(open)} open`]);
  const tokens = perSecond(outputTokens);
  const replicas = state.pools.flatMap((pool) => pool.replicas);
  const inside = sum(replicas.map((each) => each.running + each.waiting));
  tile("tokens", [tokens], [rate(tokens), " ", make("small", "", "tokens/s")], [`${many(inside, "request")} in ${many(replicas.length, "engine")}`]);
  const shed = Math.max(0, ...gateways.map((each) => each.shed_fraction));
  tile("shed", [], [percent(shed)], [shed ? "of the work is given up now" : "nothing is given up"]);
  setBar(document.querySelector("[data-meter]"), shed);
}

// -- tables -----------------------------------------------------------------------------------------------------------

function cell(text, name = "") {
  return make("td", name, text);
}

/** A cell with a second, quieter line where there is something to say. */
function titled(text, aside, name = "") {
  return make("td", name, text, ...(aside ? [make("span", "aside", aside)] : []));
}

function showAbout({ deployment, gateway, gateways, pools, uptime_s: uptimeS }) {
  const known = Object.keys(gateways).length, all = deployment.gateways;
  fill("model", deployment.model);
  const of = all > 1 ? `${known} of ${all} gateways, ` : "";
  fill("about", `${deployment.engine === "vllm" ? "vLLM" : "emulated engines"}, ${of}gateway ${gateway}, up for ${duration(uptimeS)}`);
  fill("emulated", make("strong", "", "Emulated engines. "), `Their times are those of the profile ${deployment.emulates}` +
    (deployment.speed === 1 ? "" : `, ${deployment.speed} times as fast`) + "; their words mean nothing.");
  at("emulated").hidden = deployment.engine !== "emulated";
  at("try-card").hidden = pools.every((pool) => pool.role === "pooling");
  at("key-field").hidden = !deployment.needs_key;
  at("key").required = deployment.needs_key;
  fill("policies", ...Object.entries(deployment.policies).map(([question, name]) =>
    make("div", "", make("dt", "", question.replaceAll("_", " ")), make("dd", NULLS.test(name) ? "null" : "", name))));
}

function showPools({ pools, gateways }) {
  fill("pools", ...pools.map((pool) => {
    const { replicas } = pool, out = Math.max(0, ...Object.values(gateways).map((each) => each.ejected[pool.name] ?? 0));
    const few = replicas.length < pool.wanted ? "bad" : "aside";
    const facts = `${count(sum(replicas.map((each) => each.running)))} running, ${count(sum(replicas.map((each) => each.waiting)))} waiting inside`;
    const rest = replicas.length - MAX_REPLICAS;
    return make("div", replicas.length > 2 ? "pool broad" : "pool",
      make("h3", "", pool.name, ...(pool.role === pool.name ? [] : [make("span", "aside", pool.role)]),
        make("span", few, `${replicas.length} of ${pool.wanted} up`),
        ...(out ? [make("span", "bad", `${out} ejected`)] : []), make("span", "aside", facts)),
      make("ul", "replicas", ...replicas.slice(0, MAX_REPLICAS).map(replicaItem)),
      ...(rest > 0 ? [make("p", "aside", `and ${rest} more`)] : []));
  }));
}

function replicaItem({ id, kv_cache_usage: usage, running }) {
  return make("li", "", make("span", "id", id), `${count(running)} running`,
    bar(usage, `KV cache of ${id}`), make("span", "aside", `KV ${percent(usage)}`));
}

function showLines({ pools, gateways }) {
  const queues = new Map();
  for (const each of Object.values(gateways).flatMap((gateway) => gateway.queues)) {
    const queue = queues.get(each.queue) ?? { requests: 0, workS: 0, oldestS: 0, classes: new Map() };
    queue.requests += each.requests;
    queue.workS += each.work_s;
    queue.oldestS = Math.max(queue.oldestS, each.oldest_s);
    queue.classes.set(each.priority, (queue.classes.get(each.priority) ?? 0) + each.requests);
    queues.set(each.queue, queue);
  }
  const stages = pools.map((pool) => pool.role);
  const shown = [...queues].filter(([name, { requests: waiting }]) => waiting || stages.includes(name.split(":")[0]));
  fill("queues", ...shown.map(([name, { requests: waiting, workS, oldestS, classes }]) =>
    make("tr", "", titled(lineName(name, pools), [...classes].filter(([, n]) => n).map(([each, n]) => `${each} ${count(n)}`).join(", ")),
      cell(count(waiting), "n"), cell(seconds(workS), "n"), cell(waiting ? seconds(oldestS) : "–", "n"))));
}

/** ``prefill:short<long-1``: of the lanes on the pool ``short`` that may borrow from ``long`` while two are idle. */
function lineName(name, pools) {
  const [stage, places] = name.split(":");
  if (!places) return stage;
  const known = (pool) => (pools.some((each) => each.name === pool) ? pool : pool.replace(/-\d+$/, ""));
  const [own, ...lenders] = places.split("<").filter(Boolean).map((each) => each.split("+").map(known).join(" or "));
  return [`${stage} on ${own}`, ...lenders.map((each) => `idle ${each}`)].join(", or ");
}

function showLanes({ lanes, gateways }) {
  at("lanes-table").hidden = !lanes.length;
  at("no-lanes").hidden = Boolean(lanes.length);
  const known = Object.values(gateways);
  fill("lanes", ...lanes.map((lane) => {
    const border = known.map((each) => each.border_tokens[lane.name]).find((each) => each !== undefined);
    const from = border === undefined ? lane.at_least_tokens : border;
    const range = lane.is_fallback ? "fallback" : border === undefined && lane.below_tokens !== null
      ? `prompts of ${count(from)} to ${count(lane.below_tokens - 1)} tokens` : `prompts from ${count(from)} tokens`;
    const taken = sum(known.map((each) => each.lane_requests[lane.name] ?? 0));
    return make("tr", "", titled(lane.name, range), cell(count(taken), "n"), sloCell(lane, "ttft", "far"), sloCell(lane, "tpot"));
  }));
}

/** Where requests lose time, and what helps; a lane without a name is all of them. */
function showBounds({ bounds }) {
  at("bounds-table").hidden = !bounds.length;
  at("no-bounds").hidden = Boolean(bounds.length);
  fill("bounds", ...bounds.map(({ lane, bound, fraction, lever }) => {
    const lost = fraction ? `${percent(fraction)} of the time that requests lose` : "requests lose little time";
    return make("tr", "", ...(lane ? [cell(lane)] : []), titled(make("strong", "", bound.replaceAll("_", " ")), lost), cell(lever));
  }));
}

function sloCell(lane, slo, name = "") {
  const sloS = lane.slo_s[slo], then = before(SLO_S), now = history[history.length - 1];
  if (sloS === null) return cell("no SLO", `aside ${name}`);
  const [yes, no] = then ? ["true", "false"].map((how) => growth(kept(lane.name, slo, how), then, now)) : [0, 0];
  const share = yes / (yes + no), level = share >= 0.99 ? "good" : share >= 0.9 ? "fair" : "bad";
  const text = yes + no ? make("strong", level, percent(Math.floor(1000 * share) / 1000)) : "–";
  return titled(text, `within ${sloS < 1 ? `${1000 * sloS} ms` : `${sloS} s`}`, name);
}

const refusals = new Map();

function showRefusals({ gateway, gateways, refusals: told }) {
  for (const each of told) refusals.set(`${gateway} ${each.number}`, { ...each, atS: nowS() - each.age_s });
  const latest = [...refusals].sort(([, a], [, b]) => b.atS - a.atS);
  latest.splice(MAX_REFUSALS).forEach(([key]) => refusals.delete(key));
  const reasons = new Map();
  for (const [key, n] of Object.values(gateways).flatMap((each) => Object.entries(each.requests))) {
    const [kind, reason] = key.split(" ");
    if (n && (kind === "refused" || kind === "failed")) reasons.set(reason, (reasons.get(reason) ?? 0) + n);
  }
  fill("reasons", ...[...reasons].sort(([, a], [, b]) => b - a).map(([reason, n]) => make("span", "chip", `${reason} `, make("b", "", count(n)))));
  at("refusals-table").hidden = !latest.length;
  at("no-refusals").hidden = Boolean(latest.length);
  const alike = new Map();
  for (const [, each] of latest) {
    const key = JSON.stringify([each.kind, each.reason, each.class, each.lane]);
    alike.set(key, [...(alike.get(key) ?? []), each]);
  }
  fill("refusals", ...[...alike.values()].map((group) => {
    const [each] = group;
    return make("tr", "", cell(`${duration(nowS() - each.atS)} ago`), cell(count(group.length), "n"), cell(each.kind, "far what"),
      titled(each.reason, each.says), cell(each.class || "–"), cell(each.lane || "–"));
  }));
}
