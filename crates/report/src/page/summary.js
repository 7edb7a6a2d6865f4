// Summary, steps and ranks, idle causes.

const PARTS = ['compute', 'exposed_communication', 'exposed_memory', 'exposed_other', 'idle'];

function summaryTab(report, go) {
  const { summary } = report;
  const { job } = summary;
  const shares = Object.fromEntries(summary.parts.map((part) => [part.part, part.window_pct]));
  const ofAll = summary.ranks.length > 1 ? ', all ranks' : '';
  const facts = el('div', { class: 'facts' },
    fact(nanos(job.step_p50_ns), summary.ranks.length > 1 ? 'step (median, slowest rank)' : 'step (median)'),
    job.device_step_p50_ns == null ? null : fact(nanos(job.device_step_p50_ns), 'device step'),
    job.is_of_host ? null : fact(percent(job.busy_pct), `device busy${ofAll}`),
    fact(percent(shares.compute), `${job.is_of_host ? 'in operators' : 'compute'}${ofAll}`),
    job.is_of_host ? null : fact(percent(shares.exposed_communication), `exposed communication${ofAll}`),
    job.is_of_host ? null : fact(percent(shares.idle), `idle${ofAll}`), occupancyFact(report),
    fact(`${count(job.rank_count)}${job.world_size && job.world_size !== job.rank_count ? ` of ${count(job.world_size)}` : ''}${job.backend ? `, ${job.backend}` : ''}`, 'ranks'),
    fact(job.is_of_host ? 'none (host only)' : `${count(job.device_count)} × ${job.devices || 'unknown'}`, 'devices', true),
    fact(count(job.event_count), 'events'), fact(windowText(job), 'analyzed window', true));
  const parts = summary.parts.filter((part) => part.time_ns > 0);
  const where = job.device_count === 0 && !job.is_of_host ? note('No device work was recorded.') : el('div', {},
    job.is_of_host ? note('No device work was recorded, so the host takes the place of a device. Compute is the time in operators; other work is the time between them.') : null,
    stackedBars([{ label: 'all ranks', parts: parts.map((part) => ({ key: part.part, value: part.time_ns })), value: nanos(job.window_ns) }]),
    legend(parts.map((part) => part.part)));
  return [facts, report.findings.account ? note(`Step summary: ${report.findings.account}.`) : null, heading('Time breakdown'), where, heading('Top findings'), topFindings(report, go),
    job.is_of_host ? hostOnly(summary, go) : el('div', { class: 'columns' },
      el('div', {}, heading('Longest kernels, copies and sets'), table([
        { title: 'name', kind: 'name', get: (row) => row.name, cell: (row) => link(row.name, () => go.find(row.name), 'find on the timeline') },
        { title: 'count', kind: 'count', get: (row) => row.count },
        { title: 'time', kind: 'ns', get: (row) => row.total_ns, bar: (row) => colour(row.class) },
        { title: '% of busy', kind: 'percent', get: (row) => row.busy_pct }], summary.kernels)),
      el('div', {}, heading('Outermost operators'), table([
        { title: 'name', kind: 'name', get: (row) => row.name, cell: (row) => link(row.name, () => go.find(row.name), 'find on the timeline') },
        { title: 'count', kind: 'count', get: (row) => row.count },
        { title: 'on the host', kind: 'ns', get: (row) => row.host_ns, bar: () => colour('operator') },
        { title: 'on devices', kind: 'ns', get: (row) => row.device_ns, bar: () => colour('compute') }], summary.operators))),
    heading('Trace quality'), quality(report)];
}

// For traces without device work: operators by self time, and threads.
function hostOnly(summary, go) {
  return el('div', { class: 'columns' },
    el('div', {}, heading('Operators by self time'), table([
      { title: 'name', kind: 'name', get: (row) => row.name, cell: (row) => link(row.name, () => go.find(row.name), 'find on the timeline') },
      { title: 'count', kind: 'count', get: (row) => row.count },
      { title: 'self time', kind: 'ns', get: (row) => row.own_ns, bar: () => colour('operator') },
      { title: 'total time', kind: 'ns', get: (row) => row.host_ns }], summary.own_times)),
    el('div', {}, heading('Threads'), table([
      { title: 'thread', kind: 'name', get: (row) => row.thread }, { title: 'rank', kind: 'number', get: (row) => row.rank },
      { title: 'operators', kind: 'count', get: (row) => row.operator_count },
      { title: 'in operators', kind: 'ns', get: (row) => row.operator_ns, bar: () => colour('operator') },
      { title: '% of the rank\'s window', kind: 'percent', get: (row) => row.window_pct }], summary.threads)));
}

function occupancyFact(report) {
  const known = report.device.occupancy.filter((one) => one.occupancy_pct != null);
  const weight = sum(known.map((one) => one.kernel_ns));
  const mean = weight > 0 ? sum(known.map((one) => one.occupancy_pct * one.kernel_ns)) / weight : null;
  return mean == null ? null : fact(percent(mean), 'estimated SM occupancy during compute');
}

function windowText(job) {
  if (job.window_rule === 'steps') return `${count(job.step_count)} complete steps`;
  return job.window_rule === 'hta' ? 'window of Holistic Trace Analysis' : 'whole recording';
}

function quality({ summary, quality: lines }) {
  const items = lines.map((line) => el('div', { class: 'issue' }, el('span', { class: line.severity, text: `${line.severity} ` }), el('b', { text: words(line.id) }), `: ${line.words} `,
    el('span', { class: 'note', text: `Affects: ${line.matters}. Hint: ${line.hint}.`.replaceAll('..', '.') })));
  return el('div', {}, el('p', {}, el('span', { class: `verdict ${summary.verdict}`, text: summary.verdict }), summary.verdict_words.slice(summary.verdict.length)), items);
}

function ranksTab(report, go) {
  const { summary, steps } = report;
  const bars = summary.breakdowns.map((row) => ({
    label: `rank ${row.rank}`, value: `${nanos(row.window_ns)}, busy ${percent(row.busy_pct)}`, act: () => go.rank(row.rank),
    parts: [{ key: 'compute', value: row.compute_ns }, { key: 'exposed_communication', value: row.exposed_communication_ns },
      { key: 'exposed_memory', value: row.exposed_memory_ns }, { key: 'exposed_other', value: row.exposed_other_ns }, { key: 'idle', value: row.idle_ns }],
  }));
  const used = PARTS.filter((key) => bars.some((bar) => bar.parts.some((part) => part.key === key && part.value > 0)));
  return [heading('Window of each rank'), stackedBars(bars), legend(used),
    note('The parts of a bar add up to the window. Compute has priority: the other parts count only while no compute runs.'),
    heading('Breakdown'), table([
      { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'devices', kind: 'count', get: (row) => row.device_count },
      { title: 'window', kind: 'ns', get: (row) => row.window_ns }, { title: 'busy', kind: 'percent', get: (row) => row.busy_pct },
      { title: 'compute', kind: 'ns', get: (row) => row.compute_ns }, { title: 'communication', kind: 'ns', get: (row) => row.communication_ns },
      { title: 'exposed', kind: 'ns', get: (row) => row.exposed_communication_ns, tip: 'communication without concurrent compute' },
      { title: 'overlap', kind: 'percent', get: (row) => row.overlap_pct, tip: 'share of communication that overlaps compute' },
      { title: 'copies and sets', kind: 'ns', get: (row) => row.memory_ns }, { title: 'idle', kind: 'ns', get: (row) => row.idle_ns, bar: () => colour('idle') },
      { title: 'device rows', kind: 'count', get: (row) => row.device_row_count }], summary.breakdowns, { top: 64 }),
    heading('Traces'), table([
      { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'file', kind: 'name', get: (row) => row.origin },
      { title: 'devices', kind: 'text', get: (row) => row.devices }, { title: 'events', kind: 'count', get: (row) => row.event_count },
      { title: 'threads', kind: 'count', get: (row) => row.thread_count }, { title: 'streams', kind: 'count', get: (row) => row.stream_count },
      { title: 'attributed to operators', kind: 'percent', get: (row) => row.attributed_pct, tip: 'share of device work' }, { title: 'lost', kind: 'count', get: (row) => row.loss_count }], summary.ranks, { top: 64 }),
    heading('Steps'), steps.rows.length === 0 ? note('The traces contain no step markers.') : stepsTable(report, go),
    steps.left_out_count > 0 ? note(`${count(steps.left_out_count)} steps are not listed.`) : null,
    summary.steps.length ? heading('Variation of step times') : null,
    summary.steps.length ? spreads(summary.steps.map((row) => ({ label: `rank ${row.rank}`, min: row.min_ns, p25: row.p25_ns, p50: row.p50_ns, p75: row.p75_ns, p95: row.p95_ns, max: row.max_ns })), 'compute') : null];
}

function stepsTable(report, go) {
  return table([
    { title: 'step', kind: 'number', get: (row) => row.number, cell: (row) => link(String(row.number), () => go.span(row.at_ns, row.at_ns + row.host_ns), 'show it on the timeline') },
    { title: 'rank', kind: 'number', get: (row) => row.rank },
    { title: 'on the host', kind: 'ns', get: (row) => row.host_ns, bar: () => colour('operator') },
    { title: 'period', tip: 'from the start of the step to the start of the next', kind: 'ns', get: (row) => row.period_ns }, { title: 'complete', kind: 'text', get: (row) => (row.is_whole ? 'yes' : 'no') },
    { title: 'busy', kind: 'ns', get: (row) => row.busy_ns }, { title: 'compute', kind: 'ns', get: (row) => row.compute_ns },
    { title: 'communication', kind: 'ns', get: (row) => row.communication_ns }, { title: 'exposed', kind: 'ns', get: (row) => row.exposed_communication_ns },
    { title: 'copies and sets', kind: 'ns', get: (row) => row.memory_ns }, { title: 'idle', kind: 'ns', get: (row) => row.idle_ns }],
  report.steps.rows, { top: 24 });
}

function idleTab(report, go) {
  const { idle } = report;
  if (idle.causes.length === 0) return [note('No idle time of a device was recorded.')];
  const keys = [...new Set(idle.causes.map((row) => row.cause))];
  const devices = new Map();
  for (const row of idle.causes) {
    const key = isPool ? `rank ${row.rank}` : `rank ${row.rank} device ${row.device}`;
    if (!devices.has(key)) devices.set(key, []);
    devices.get(key).push(row);
  }
  const bars = [...devices].map(([label, rows]) => ({ label, parts: keys.map((key) => ({ key, value: sum(rows.filter((row) => row.cause === key).map((row) => row.idle_ns)) })), value: nanos(sum(rows.map((row) => row.idle_ns))) }));
  const totals = keys.map((key) => ({ key, value: sum(idle.causes.filter((row) => row.cause === key).map((row) => row.idle_ns)) })).sort((a, b) => b.value - a.value);
  const whole = sum(totals.map((one) => one.value));
  return [heading('Causes of device idle time'), stackedBars(bars), legend(keys),
    el('div', { class: 'columns' },
      el('div', {}, heading('Causes, all devices'), table([
        { title: 'cause', kind: 'words', get: (row) => row.key }, { title: 'idle', kind: 'ns', get: (row) => row.value, bar: (row) => colour(row.key) },
        { title: '% of idle', kind: 'percent', get: (row) => 100 * row.value / Math.max(1, whole) },
        { title: 'meaning', kind: 'wrap', get: (row) => meaning(row.key) }], totals)),
      el('div', {}, heading('Owners of idle time'), table([
        { title: 'owner', kind: 'name', get: (row) => row.owner ?? '(nothing recorded)', cell: (row) => (row.owner ? link(row.owner, () => go.find(row.owner), row.owner) : '(nothing recorded)') },
        { title: 'cause', kind: 'words', get: (row) => row.cause }, { title: 'gaps', kind: 'count', get: (row) => row.gap_count },
        { title: 'idle', kind: 'ns', get: (row) => row.idle_ns, bar: (row) => colour(row.cause) }, { title: 'ranks', kind: 'count', get: (row) => row.ranks }], owners(idle.owners)))),
    heading('Longest gaps'), note(`${count(idle.gaps.length)} of ${count(idle.gap_count)} gaps. Click a start to see it on the timeline.`), table([
      { title: 'start', kind: 'number', get: (row) => row.at_ns, cell: (row) => link(moment(row.at_ns, 1e7), () => go.span(row.at_ns, row.at_ns + row.idle_ns)) },
      { title: 'rank', kind: 'number', get: (row) => row.rank }, { title: 'device', kind: 'number', get: (row) => row.device },
      { title: 'idle', kind: 'ns', get: (row) => row.idle_ns, bar: (row) => colour(row.cause) }, { title: 'main cause', kind: 'words', get: (row) => row.cause },
      { title: 'owner', kind: 'name', get: (row) => row.owner ?? '' }, { title: 'ended by', kind: 'name', get: (row) => go.short(row.ended_by ?? ''), full: (row) => row.ended_by ?? '' }], idle.gaps)];
}

// Sums the owners of idle time over all devices.
function owners(rows) {
  const found = new Map();
  for (const row of rows) {
    const key = `${row.cause}\u0000${row.owner ?? ''}`;
    const one = found.get(key) ?? { cause: row.cause, owner: row.owner, gap_count: 0, idle_ns: 0, ranks: 0 };
    one.gap_count += row.gap_count;
    one.idle_ns += row.idle_ns;
    one.ranks += 1;
    found.set(key, one);
  }
  return [...found.values()].sort((a, b) => b.idle_ns - a.idle_ns);
}
