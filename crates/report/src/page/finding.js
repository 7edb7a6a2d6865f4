// Findings with their cause, saving, advice, and the rows that support them.

const FINDINGS_ON_SUMMARY = 4;
const HELD = { device_bound: 'device-bound', warm_up: 'warm-up', first_launch: 'first launches', autotuning: 'autotuning',
  graph_capture: 'graph capture', profiler: 'profiler overhead' };

function topFindings(report, go) {
  const all = report.summary.ranks.length;
  const real = report.findings.rows.filter((row) => row.category !== 'quality');
  const shown = real.slice(0, FINDINGS_ON_SUMMARY);
  const rest = report.findings.rows.length - shown.length;
  return el('div', {}, shown.length ? shown.map((row) => finding(row, go, { all, hasEvidence: false })) : note('No rule found waste in this trace.'),
    rest > 0 ? el('p', {}, link(`all ${count(report.findings.rows.length)} findings, with evidence`, () => go.open('findings'))) : null);
}

function findingsTab(report, go) {
  const all = report.summary.ranks.length;
  const { rows, suppressed, step_ns: step, joint_saving_ns: joint } = report.findings;
  const quality = rows.filter((row) => row.category === 'quality');
  const real = rows.filter((row) => row.category !== 'quality');
  const said = ['A saving is the predicted reduction of the step time, computed on the dependency graph. Savings do not add up.'];
  if (joint != null) said.push(`All fixes together save ${nanos(joint)} of a step of ${nanos(step)} (${percent(100 * joint / Math.max(1, step))}).`);
  said.push('rowmill explain RULE describes a rule and how to fix its findings.');
  return [heading('Wasted time'), note(said.join(' ')),
    real.length ? real.map((row) => finding(row, go, { all, hasEvidence: true })) : note('No rule found waste in this trace.'),
    quality.length ? heading('Limits of the recording') : null, quality.map((row) => finding(row, go, { all, hasEvidence: true })),
    suppressed.length ? heading('Suppressed findings') : null,
    suppressed.length ? table([{ title: 'finding', kind: 'name', get: (row) => row.key }, { title: 'reason', kind: 'wrap', get: (row) => row.reason }], suppressed) : null].flat();
}

function finding(row, go, { all, hasEvidence }) {
  const gain = row.saving;
  const ranks = row.ranks.length === 0 || all === 1 ? '' : row.ranks.length === all ? `all ${all} ranks` : `rank${row.ranks.length > 1 ? 's' : ''} ${row.ranks.join(', ')}`;
  const head = el('div', { class: 'head' }, el('span', { class: `verdict ${row.severity}`, text: row.severity }), el('b', { text: `${row.rule} ${row.title}` }),
    el('span', { class: 'note', text: [`${row.confidence} confidence`, ranks, row.held_back ? `advice withheld: ${HELD[row.held_back] ?? words(row.held_back)}` : ''].filter(Boolean).join(' · ') }),
    gain ? el('span', { class: 'saving', text: savingText(gain), title: `between ${nanos(gain.low_ns)} and ${nanos(gain.high_ns)}` }) : null);
  const parts = [head, el('p', { text: row.what }), row.advice ? el('p', { class: 'note', text: row.advice }) : null];
  if (hasEvidence && (row.proofs.length || row.numbers.length)) parts.push(evidence(row, go));
  return el('article', { class: `finding s-${row.severity}` }, parts);
}

// A saving below the variation between steps is not certain.
function savingText(gain) {
  const share = `${nanos(gain.mid_ns)}, ${percent(gain.mid_pct)} of a step`;
  return gain.mid_ns > 0 && gain.low_ns === 0 ? `no certain gain: steps differ by more than the ${share}` : `saves ${share}`;
}

function evidence(row, go) {
  const measured = row.numbers.map((one) => `${words(one.name.replace(/_(ns|pct|bytes)(?=_|$)/, ''))}: ${measure(one)}`);
  return el('details', {}, el('summary', { text: 'evidence' }), measured.length ? note(measured.join(' · ')) : null,
    row.proofs.length ? table([
      { title: 'rows', kind: 'name', get: (one) => one.name, cell: (one) => link(go.short(one.name), () => (one.at ? go.event(one.rank, one.name, one.at[0], one.at[1]) : go.find(one.name)), 'show the longest on the timeline') },
      { title: 'rank', kind: 'number', get: (one) => one.rank }, { title: 'count', kind: 'count', get: (one) => one.count }, { title: 'time', kind: 'ns', get: (one) => one.total_ns },
      { title: 'inside', kind: 'name', get: (one) => one.within.join(' › ') }, { title: 'source', kind: 'name', get: (one) => one.source ?? '' }], row.proofs, { top: 10 }) : null,
    el('p', { class: 'note', text: `key: ${row.key}` }));
}

// The unit of a number is the suffix of its name.
function measure({ name, value }) {
  const [, unit] = /_(ns|pct|bytes)(?:_|$)/.exec(name) ?? [];
  const show = { ns: nanos, pct: percent, bytes }[unit] ?? number;
  return show(value);
}
