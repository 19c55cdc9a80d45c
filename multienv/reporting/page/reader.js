// Decides how episodes are found and read: filters, a list in pages, and one episode in full.

const PER_PAGE = 40;
const EVERY = { phase: "", environment: "", status: "", low: "", high: "", search: "", task: "", order: "played" };
const ORDERS = {
  played: ["as played", (a, b) => a.place - b.place],
  newest: ["newest first", (a, b) => b.place - a.place],
  best: ["highest reward", (a, b) => rank(b.reward) - rank(a.reward) || a.place - b.place],
  worst: ["lowest reward", (a, b) => (rank(a.reward) === -Infinity ? Infinity : rank(a.reward)) - (rank(b.reward) === -Infinity ? Infinity : rank(b.reward)) || a.place - b.place],
  calls: ["most tool calls", (a, b) => b.calls - a.calls || a.place - b.place],
  tokens: ["most tokens", (a, b) => b.tokens - a.tokens || a.place - b.place],
};
const rank = (value) => (typeof value === "number" ? value : -Infinity);

/** Make the reader. It returns its section, and `read(filter)`, which goes there. */
function makeReader(page, episodes) {
  const { about } = page;
  let wanted = { ...EVERY }, found = [], at = 0, chosen = null;
  const words = new Map();
  const list = h("ol", { class: "list", role: "listbox", tabindex: 0, "aria-label": "Episodes", onkeydown: (event) => onKey(event) });
  const pager = h("div", { class: "pager" }), count = h("p", { class: "note count", role: "status" });
  const detail = h("article", { class: "card detail", tabindex: 0, "aria-label": "Episode" });
  const select = (name, title, options) => field(title, h("select", { name, onchange: (event) => change({ [name]: event.target.value }) }, options.map(([value, label]) => h("option", { value }, label))));
  const input = (name, title, props) => field(title, h("input", { name, ...props, oninput: (event) => later({ [name]: event.target.value }) }));
  const field = (title, control) => h("label", {}, h("span", {}, title), control);
  const phases = [...new Set(episodes.map((each) => each.phase))], names = [...page.looks.keys()];
  const form = h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
    input("search", "Text", { type: "search", placeholder: "Search tasks, tools, texts, reasons   ( / )", class: "wide", autocomplete: "off", spellcheck: "false" }),
    phases.length > 1 ? select("phase", "Played in", [["", "any"], ...phases.map((each) => [each, each])]) : null,
    select("environment", "Environment", [["", "any"], ...names.map((each) => [each, text(each)])]),
    select("status", "Status", [["", "any"], ...about.statuses.map((each) => [each, each])]),
    input("low", "Reward from", { type: "number", step: "any" }), input("high", "to", { type: "number", step: "any" }),
    select("order", "Order", Object.entries(ORDERS).map(([value, [label]]) => [value, label])),
    h("button", { type: "button", class: "quiet", onclick: () => change(EVERY) }, "Reset"));
  const taskChip = h("button", { type: "button", class: "chip only", hidden: true, onclick: () => change({ task: "" }) });

  const textOf = (episode) => {
    if (!words.has(episode)) {
      const parts = [episode.environment, episode.task, episode.status, episode.reason, episode.error, episode.session,
        ...episode.steps.flatMap((each) => [each.tool, each.arguments, each.text, each.metadata]),
        ...episode.messages.flatMap((each) => [each.role, each.name, each.thought, each.content, ...each.calls.flatMap((call) => [call.tool, call.arguments]), each.rest])];
      words.set(episode, parts.join("\n").toLowerCase());
    }
    return words.get(episode);
  };
  const fits = (episode) => {
    const low = wanted.low === "" ? null : Number(wanted.low), high = wanted.high === "" ? null : Number(wanted.high);
    return (!wanted.phase || episode.phase === wanted.phase) && (!wanted.environment || episode.environment === wanted.environment)
      && (!wanted.status || episode.status === wanted.status) && (!wanted.task || episode.task === wanted.task)
      && (low === null || (typeof episode.reward === "number" && episode.reward >= low))
      && (high === null || (typeof episode.reward === "number" && episode.reward <= high))
      && (!wanted.search || textOf(episode).includes(wanted.search.toLowerCase()));
  };
  const change = (parts) => {
    wanted = { ...wanted, ...parts };
    for (const control of form.elements) if (control.name && control.value !== wanted[control.name]) control.value = wanted[control.name];
    taskChip.hidden = !wanted.task;
    taskChip.replaceChildren("task ", h("b", {}, text(wanted.task)), " ×");
    taskChip.setAttribute("aria-label", `Show other tasks than ${wanted.task} too`);
    found = episodes.filter(fits).sort(ORDERS[wanted.order][1]);
    at = Math.max(0, found.indexOf(chosen));
    show();
  };
  let timer = 0;
  const later = (parts) => { clearTimeout(timer); timer = setTimeout(() => change(parts), 120); };

  const show = () => {
    const first = Math.floor(at / PER_PAGE) * PER_PAGE, last = Math.max(0, Math.ceil(found.length / PER_PAGE) - 1);
    list.replaceChildren(...found.slice(first, first + PER_PAGE).map((episode, place) => item(page, episode, first + place === at, () => pick(first + place))));
    pager.replaceChildren(...(last ? pages(first / PER_PAGE, last, found.length, PER_PAGE, (to) => pick(to * PER_PAGE)) : []));
    count.replaceChildren(found.length === episodes.length ? `${plural(found.length, "episode")}.` : `${whole(found.length)} of ${plural(episodes.length, "episode")}.`);
    const current = list.querySelector("[aria-selected=true]");
    if (current) list.setAttribute("aria-activedescendant", current.id);
    else list.removeAttribute("aria-activedescendant");
    if (found[at] === chosen && detail.firstChild) return;
    chosen = found[at] || null;
    const seeTask = () => change({ ...EVERY, order: wanted.order, task: chosen.task });
    detail.replaceChildren(...(chosen ? episodeView(page, chosen, seeTask) : [h("p", { class: "empty" }, "No episode fits.")]));
    detail.scrollTop = 0;
  };
  const pick = (place) => {
    at = Math.max(0, Math.min(found.length - 1, place));
    show();
    const current = list.querySelector("[aria-selected=true]");
    if (current) keepInView(list, current);
  };
  const onKey = (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -found.length, End: found.length, ArrowRight: PER_PAGE, ArrowLeft: -PER_PAGE }[event.key];
    if (event.key === "Enter") { event.preventDefault(); detail.focus(); }
    if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    pick(at + move);
  };
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea") || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "/") { event.preventDefault(); form.elements.search.focus(); }
    if (event.key === "j" || event.key === "k") pick(at + (event.key === "j" ? 1 : -1));
  });

  const missing = about.num_episodes - about.num_in_page;
  const note = missing ? `${whole(about.num_in_page)} of ${plural(about.num_episodes, "episode")} can be read here, some of every environment and status, spread over the run; ${whole(missing)} are left out. The figures above are over all of them.`
    : "Every episode of the record. Long texts are cut as the record has them.";
  const keys = h("p", { class: "note keys" }, [["/", "search"], ["j k", "next, previous"], ["↑ ↓ ← →", "in the list"], ["Enter", "into the episode"]].map(([key, does]) => h("span", {}, h("kbd", {}, key), " ", does)));
  const node = section("episodes", "Episodes", note, form, h("div", { class: "count-line" }, count, taskChip, keys), h("div", { class: "reader" }, h("div", { class: "card finder" }, list, pager), detail));
  change({});
  const read = (parts) => { change({ ...EVERY, phase: phases.length > 1 ? page.phase.name : "", ...parts }); node.scrollIntoView(); list.focus({ preventScroll: true }); };
  return { node, read };
}

function keepInView(list, current) {
  const above = current.offsetTop - list.offsetTop, below = above + current.offsetHeight;
  if (above < list.scrollTop) list.scrollTop = above;
  else if (below > list.scrollTop + list.clientHeight) list.scrollTop = below - list.clientHeight;
}

function item(page, episode, isChosen, onclick) {
  const facts = [episode.step === null ? null : `step ${whole(episode.step)}`, plural(episode.calls, "call"), plural(episode.tokens, "token")].filter(Boolean);
  return h("li", { id: `episode-${episode.place}`, role: "option", "aria-selected": String(isChosen), onclick },
    h("div", {}, swatch(page.looks.get(episode.environment)), h("span", { class: "clip task" }, text(episode.task)), h("b", { class: signOf(episode.reward) }, reward(episode.reward))),
    h("div", {}, pill(episode.status), h("span", { class: "note" }, facts.join(" · "))));
}

const signOf = (value) => (typeof value !== "number" ? "none" : value > 0 ? "plus" : value < 0 ? "minus" : "zero");
