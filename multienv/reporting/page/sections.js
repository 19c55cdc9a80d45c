// Decides what the page says of a run: what it amounts to, each environment, its curves, its mixture, and what went wrong.

const PALETTE = 8;
const DASHES = ["", "7 4", "2 4", "10 3 2 3"];

/** Give each environment a colour, and beyond as many as there are colours a dash, the same in the whole page. */
function looks(names) {
  return new Map(names.map((name, at) => [name, { colour: at % PALETTE, dash: DASHES[Math.floor(at / PALETTE) % DASHES.length] }]));
}

/** Show what a run is called, when it was, and what it amounts to. */
function headOf(about, phase) {
  const facts = [about.run ? ["run", h("code", { title: text(about.run) }, text(about.run.slice(0, 8)))] : null,
    phase && phase.started_at ? ["played", span(phase.started_at, phase.ended_at)] : null,
    ["reported", moment(about.written_at)]].filter(Boolean);
  const head = [h("p", { class: "overline" }, "multienv report"), h("h1", {}, text(about.name)),
    h("p", { class: "meta" }, facts.map(([name, value]) => h("span", {}, h("em", {}, name), " ", value)))];
  if (!phase) return [...head, h("p", { class: "card empty" }, "The record has no episode yet. Write the report again once the first batch has been played.")];
  const { totals } = phase, wall = phase.started_at === null ? null : phase.ended_at - phase.started_at;
  const many = phase.environments.length > 1;
  const tiles = [
    phase.first_step === null ? ["Tasks", whole(totals.tasks), `${number(totals.rollouts / totals.tasks)} rollouts each`]
      : ["Training steps", whole(phase.last_step + 1), phase.name === "training" ? `${steps(phase.first_step, phase.last_step)}` : "evaluated in between"],
    ["Rollouts", whole(totals.rollouts), `${percent(totals.scored / totals.rollouts)} scored`],
    ["Environments", whole(phase.environments.length), phase.first_step === null ? "evaluated" : plural(totals.tasks, "task")],
    ["Reward", totals.reward ? mean(totals.reward.mean) : MISSING, totals.reward ? `from ${reward(totals.reward.least)} to ${reward(totals.reward.greatest)}` : "nothing was scored"],
    ["Success", percent(totals.success), many ? "over all rollouts" : "of its rollouts"],
    ["Tokens", short(totals.tokens), `${mean(totals.tokens / totals.rollouts)} a rollout`],
    ["Wall time", duration(wall), wall > 0 ? `${number(totals.rollouts / wall * 60)} rollouts/min` : "nobody noted it"],
  ];
  return [...head, h("dl", { class: "tiles" }, tiles.map(([name, value, note]) => h("div", {}, h("dt", {}, name), h("dd", {}, value), h("p", {}, note))))];
}

/** Choose which environments the charts show. */
function legend(page, redraw) {
  const button = (name) => h("button", { type: "button", class: "chip", "aria-pressed": String(!page.hidden.has(name)), onclick: () => change(() => (page.hidden.has(name) ? page.hidden.delete(name) : page.hidden.add(name))) },
    swatch(page.looks.get(name)), h("span", {}, text(name)));
  const names = page.phase.environments.map((each) => each.name);
  const chips = new Map(names.map((name) => [name, button(name)]));
  const change = (act) => { act(); chips.forEach((chip, name) => chip.setAttribute("aria-pressed", String(!page.hidden.has(name)))); redraw(); };
  return h("div", { class: "legend", role: "group", "aria-label": "Environments in the charts" }, [...chips.values()],
    names.length > 2 ? [h("button", { type: "button", class: "quiet", onclick: () => change(() => page.hidden.clear()) }, "All"),
      h("button", { type: "button", class: "quiet", onclick: () => change(() => names.forEach((name) => page.hidden.add(name))) }, "None")] : null);
}

/** Show each environment's sums. */
function environmentsSection(page) {
  const { statuses } = page.about, rows = page.phase.environments;
  const known = rows.flatMap(({ totals }) => (totals.reward ? [totals.reward.low, totals.reward.high] : []));
  const low = Math.min(0, ...known), high = Math.max(...known, low + 1e-9);
  const each = (value) => (row) => value(row.totals) / row.totals.rollouts;
  const columns = [
    { title: "Environment", isText: true, value: (row) => row.name, cell: (row) => nameOf(page, row.name) },
    { title: "Rollouts", value: (row) => row.totals.rollouts, cell: (row) => whole(row.totals.rollouts) },
    { title: "Tasks", value: (row) => row.totals.tasks, cell: (row) => whole(row.totals.tasks) },
    { title: "How they ended", isText: true, hint: "Sorts by the part that the environment finished", value: (row) => row.totals.statuses[0] / row.totals.rollouts, cell: (row) => statusBar(row.totals.statuses, statuses) },
    { title: "Reward", hint: "Mean of the scored rollouts", value: (row) => row.totals.reward && row.totals.reward.mean, cell: (row) => mean(row.totals.reward && row.totals.reward.mean) },
    { title: "95 % interval", isText: true, hint: "Where the mean lies, the rollouts taken as independent", cell: (row) => interval(row.totals.reward, low, high, page.looks.get(row.name).colour) },
    { title: "Success", hint: successNote(page), value: (row) => row.totals.success, cell: (row) => shareBar(row.totals.success, page.looks.get(row.name).colour) },
    { title: "Tool calls", hint: "Per rollout", value: each((totals) => totals.tool_calls), cell: (row) => mean(row.totals.tool_calls / row.totals.rollouts) },
    { title: "in vain", hint: "Tool calls that were refused, lost, or made after the end", value: (row) => row.totals.tool_failures / (row.totals.tool_calls || 1), cell: (row) => (row.totals.tool_calls ? percent(row.totals.tool_failures / row.totals.tool_calls) : MISSING) },
    { title: "Tokens", hint: "Per rollout, those that the policy wrote", value: each((totals) => totals.tokens), cell: (row) => mean(row.totals.tokens / row.totals.rollouts) },
  ];
  return section("environments", "Environments", `Success is ${successNote(page)}.`, statusLegend(statuses, true), sortable("Environments", columns, rows, [0, false], 40));
}

const successNote = ({ about, phase }) => (phase.is_success_logged ? `told by each environment’s own rule, as ${about.log} has it` : "a reward above 0");

const nameOf = (page, name) => h("span", { class: "env" }, swatch(page.looks.get(name)), h("span", {}, text(name)));

function interval(spread, low, high, colour) {
  if (!spread) return MISSING;
  const x = (value) => 5 + between(value, low, high) * 110;
  return s("svg", { class: "range", width: 120, height: 16, role: "img", "aria-label": `${mean(spread.low)} to ${mean(spread.high)}` },
    s("title", {}, `${mean(spread.low)} to ${mean(spread.high)}`),
    s("line", { class: "grid", x1: 5, x2: 115, y1: 8, y2: 8 }),
    s("line", { class: `stroke-${colour} thick`, x1: x(spread.low), x2: x(spread.high), y1: 8, y2: 8 }),
    s("circle", { class: `fill-${colour}`, cx: x(spread.mean), cy: 8, r: 4.5 }));
}

const MEANINGS = {
  finished: "the environment said so", unfinished: "the policy stopped", truncated: "a limit ended it",
  failed: "infrastructure broke", refused: "the environment was down",
};

function statusLegend(statuses, isExplained) {
  return h("ul", { class: "statuses" }, statuses.map((status) => h("li", { title: MEANINGS[status] }, h("span", { class: `block ${status}` }), status, isExplained ? h("span", {}, MEANINGS[status]) : null)));
}

/** Show reward, success, tokens and tool calls over training steps. */
function curvesSection(page) {
  const { phase } = page;
  const series = (pick) => () => phase.environments.filter((each) => !page.hidden.has(each.name))
    .map((each) => ({ name: each.name, look: page.looks.get(each.name), points: each.curve.filter((point) => point.rollouts).map((point) => ({ place: point.place, ...pick(point) })) }));
  const chart = (title, note, format, pick, isShare = false) => chartCard(title, note, lineChart({ label: `${title} over training steps`, bins: phase.bins, series: series(pick), format, say: isShare ? format : mean, isShare }));
  const cards = [
    chart("Reward", "mean of the scored rollouts, with its 95 % interval", reward, ({ reward: spread }) => (spread ? { value: spread.mean, low: spread.low, high: spread.high } : {})),
    chart("Success", successNote(page), percent, (point) => ({ value: point.success }), true),
    chart("Tokens", "that the policy wrote, per rollout", number, (point) => ({ value: point.tokens })),
    chart("Tool calls", "per rollout", number, (point) => ({ value: point.tool_calls })),
  ];
  const whom = phase.bins.some((bin) => bin.first < bin.last) ? "Training steps are taken together, so that a point stands for several." : "A point is one training step.";
  page.charts.push(...cards);
  return section("curves", phase.name === "training" ? "Learning" : "Learning, as evaluated", whom, legend(page, page.redraw), h("div", { class: "charts" }, cards));
}

/** Show which mixture was asked for, and what came of it. */
function mixtureSection(page) {
  const { about, phase } = page;
  const line = (each, what, isAsked) => ({ name: isAsked ? `${each.name}, asked` : each.name, look: page.looks.get(each.name), isAsked, points: each.curve.map((point) => ({ place: point.place, value: point[what] })) });
  const series = () => phase.environments.filter((each) => !page.hidden.has(each.name)).flatMap((each) => [line(each, "share", false), ...(about.has_asked ? [line(each, "asked", true)] : [])]);
  const note = about.has_asked ? `Asked for, as ${about.log} has it, against what was played.`
    : about.log ? `${about.log} does not say which shares were asked for, so this is only what was played.`
      : "The directory has no log of this run yet that says which shares were asked for (log.jsonl, or a checkpoint), so this is only what was played.";
  const card = chartCard("Share of the rollouts", about.has_asked ? "played, and dotted what was asked for" : "played", lineChart({ label: "Shares over training steps", bins: phase.bins, series, format: percent }));
  const columns = [
    { title: "Environment", isText: true, value: (row) => row.name, cell: (row) => nameOf(page, row.name) },
    about.has_asked ? { title: "Asked", value: (row) => row.asked, cell: (row) => shareBar(row.asked, "asked") } : null,
    { title: "Played", hint: "Part of all rollouts", value: (row) => row.share, cell: (row) => shareBar(row.share, page.looks.get(row.name).colour) },
    { title: "Tokens", hint: "Part of all tokens that the policy wrote", value: (row) => row.token_share, cell: (row) => shareBar(row.token_share, page.looks.get(row.name).colour) },
  ].filter(Boolean);
  page.charts.push(card);
  return section("mixture", "Mixture", note, h("div", { class: "charts mixture" }, card, sortable("Mixture", columns, phase.environments, [0, false], 12)));
}

/** Show how rollouts ended, environment by environment. */
function endingsSection(page) {
  const { about, phase } = page;
  const cards = phase.environments.map((each) => chartCard(text(each.name), null,
    statusChart({ label: `How rollouts of ${each.name} ended`, bins: phase.bins, points: each.curve, statuses: about.statuses }), "small"));
  page.charts.push(...cards);
  return section("endings", "How rollouts ended", "Parts of the rollouts of each step.", statusLegend(about.statuses, false), h("div", { class: "charts small" }, cards));
}
