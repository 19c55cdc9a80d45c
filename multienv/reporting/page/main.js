// Decides what is on the page, and in which order.

const MOST_SHOWN = 8;

function start() {
  const about = carried("about"), episodes = carried("record");
  const names = [...new Set([...about.phases.flatMap((phase) => phase.environments.map((each) => each.name)), ...episodes.map((each) => each.environment)])].sort();
  const page = { about, phase: about.phases[0] || null, looks: looks(names), hidden: new Set(), charts: [], isTalk: false };
  page.redraw = () => page.charts.forEach((chart) => chart.redraw());
  const main = document.getElementById("main"), figures = h("div");
  const reader = makeReader(page, episodes);
  page.read = reader.read;
  main.replaceChildren(figures, reader.node);

  const show = () => {
    page.charts = [];
    page.hidden = new Set();
    const { phase } = page;
    document.getElementById("head").replaceChildren(...headOf(about, phase));
    if (phase) {
      const least = [...phase.environments].sort((a, b) => b.totals.rollouts - a.totals.rollouts).slice(MOST_SHOWN);
      least.forEach((each) => page.hidden.add(each.name));
      figures.replaceChildren(...[
        environmentsSection(page), phase.bins.length ? curvesSection(page) : null, phase.name === "training" ? mixtureSection(page) : null,
        phase.bins.length ? endingsSection(page) : null, tasksSection(page), latenciesSection(page), failuresSection(page),
      ].filter(Boolean));
    }
    document.getElementById("nav").replaceChildren(
      h("ul", {}, [...main.querySelectorAll("section[id]")].map((each) => h("li", {}, h("a", { href: `#${each.id}` }, each.querySelector("h2").textContent)))),
      about.phases.length > 1 ? h("div", { class: "phases", role: "group", "aria-label": "Figures of" }, about.phases.map((each) =>
        h("button", { type: "button", class: "tab", "aria-pressed": String(each === phase), onclick: () => { page.phase = each; show(); } }, each.name))) : "");
  };
  show();
  document.getElementById("foot").replaceChildren(h("p", { class: "note" }, "One file, made by multienv. It needs no network, loads nothing, and sends nothing."));
}

start();
