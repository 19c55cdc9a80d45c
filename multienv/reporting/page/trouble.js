// Decides what the page says of waiting, of tasks, and of what went wrong.

/** Show how long sessions and tools took. */
function latenciesSection(page) {
  const rows = page.phase.environments.filter(({ totals }) => totals.opening || totals.calls);
  if (!rows.length) return section("latencies", "Latencies", null, h("p", { class: "card empty" }, "Nobody timed these rollouts."));
  const all = rows.flatMap(({ totals }) => [totals.opening, totals.calls]).filter(Boolean);
  const low = Math.min(...all.map((each) => each.median)), high = Math.max(...all.map((each) => each.longest), low * 10);
  const of = (what, title, unit) => [
    { title, hint: `How many ${unit} were timed`, value: (row) => row.totals[what] && row.totals[what].count, cell: (row) => (row.totals[what] ? whole(row.totals[what].count) : MISSING) },
    { title: "median", value: (row) => row.totals[what] && row.totals[what].median, cell: (row) => duration(row.totals[what] && row.totals[what].median) },
    { title: "95th pct.", value: (row) => row.totals[what] && row.totals[what].p95, cell: (row) => duration(row.totals[what] && row.totals[what].p95) },
    { title: "longest", value: (row) => row.totals[what] && row.totals[what].longest, cell: (row) => duration(row.totals[what] && row.totals[what].longest) },
    { title: "", isText: true, cell: (row) => latencyRange(row.totals[what], low, high, page.looks.get(row.name).colour) },
  ];
  const columns = [{ title: "Environment", isText: true, value: (row) => row.name, cell: (row) => nameOf(page, row.name) }, ...of("opening", "Openings", "openings"), ...of("calls", "Tool calls", "tool calls")];
  return section("latencies", "Latencies", "Opening a session until its prompt is there, and tool calls. The dot is the median, the bar reaches to the 95th percentile, the line to the longest; the scale is logarithmic.",
    sortable("Latencies", columns, rows, [0, false], 40));
}

/** Show what became of each task. */
function tasksSection(page) {
  const { about, phase } = page;
  const columns = [
    { title: "Task", isText: true, value: (row) => row.task_id, cell: (row) => h("span", { class: "env" }, swatch(page.looks.get(row.environment)), h("code", { class: "clip" }, text(row.task_id))) },
    { title: "Rollouts", value: (row) => row.rollouts, cell: (row) => whole(row.rollouts) },
    { title: "How they ended", isText: true, value: (row) => row.statuses[0] / row.rollouts, cell: (row) => statusBar(row.statuses, about.statuses) },
    { title: "Reward", value: (row) => row.reward && row.reward.mean, cell: (row) => mean(row.reward && row.reward.mean) },
    { title: "best", value: (row) => row.reward && row.reward.greatest, cell: (row) => reward(row.reward && row.reward.greatest) },
    { title: phase.is_success_logged ? "Reward > 0" : "Success", hint: "Part of its rollouts with a reward above 0", value: (row) => row.success, cell: (row) => shareBar(row.success, page.looks.get(row.environment).colour) },
    { title: "Tool calls", value: (row) => row.tool_calls, cell: (row) => mean(row.tool_calls) },
    { title: "Tokens", value: (row) => row.tokens, cell: (row) => mean(row.tokens) },
    { title: "", isText: true, cell: (row) => h("button", { type: "button", class: "quiet", "aria-label": `Read the episodes of ${row.task_id}`, onclick: () => page.read({ environment: row.environment, task: row.task_id }) }, "Read") },
  ];
  const listed = phase.tasks.length < phase.num_tasks ? `The ${whole(phase.tasks.length)} least successful of ${whole(phase.num_tasks)}.` : `${plural(phase.num_tasks, "task")}, the least successful first.`;
  return section("tasks", "Tasks", listed, sortable("Tasks", columns, phase.tasks, [5, false], 15));
}

/** Show why rollouts came to nothing. */
function failuresSection(page) {
  const { phase } = page, all = phase.causes.reduce((sum, cause) => sum + cause.count, 0);
  if (!phase.causes.length) return section("failures", "Failures", null, h("p", { class: "card empty" }, "No rollout failed, was refused, or was cut short."));
  const when = (cause) => (cause.first === null ? MISSING : cause.first === cause.last ? whole(cause.first) : `${whole(cause.first)}–${whole(cause.last)}`);
  const columns = [
    { title: "Rollouts", value: (cause) => cause.count, cell: (cause) => whole(cause.count) },
    { title: "Environment", isText: true, value: (cause) => cause.environment, cell: (cause) => nameOf(page, cause.environment) },
    { title: "Status", isText: true, value: (cause) => cause.status, cell: (cause) => pill(cause.status) },
    { title: "Why", isText: true, value: (cause) => cause.reason, cell: (cause) => h("div", { class: "why" }, cause.error ? h("code", {}, text(cause.error)) : null, h("span", {}, text(cause.reason) || "no reason was given")) },
    { title: "Tasks", value: (cause) => cause.tasks, cell: (cause) => whole(cause.tasks) },
    { title: "Steps", hint: "The first and the last training step", value: (cause) => cause.first, cell: when },
    { title: "", isText: true, cell: (cause) => h("button", { type: "button", class: "quiet", "aria-label": `Read episodes of ${cause.environment} that are ${cause.status}`, onclick: () => page.read({ environment: cause.environment, status: cause.status, search: cause.error }) }, "Read") },
  ];
  const listed = phase.causes.length < phase.num_causes ? ` The ${whole(phase.causes.length)} most frequent of ${whole(phase.num_causes)} causes.` : "";
  return section("failures", "Failures", `${plural(all, "rollout")} that failed, were refused, or were cut short. Reasons that differ only in ids and numbers are one.${listed}`,
    sortable("Failures", columns, phase.causes, [0, true], 12));
}
