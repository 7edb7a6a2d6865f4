// The page of a comparison: verdict, times, parts, kernels, operators, and one step of each recording.

const errors = [];
window.addEventListener('error', (problem) => errors.push(String(problem.message)));
window.addEventListener('unhandledrejection', (problem) => errors.push(String(problem.reason)));

function start() {
  const report = JSON.parse(document.getElementById('data').textContent);
  const { diff, sides } = report;
  isPool = report.is_pool;
  const { verdict } = diff;
  document.getElementById('title').textContent = report.title;
  document.getElementById('about').textContent = sides.map((side, at) => {
    const of = at === 0 ? diff.before : diff.after;
    return `${['before', 'after'][at]}: ${side.name}, ${count(of.rank_count)} rank${of.rank_count === 1 ? '' : 's'}, ${count(of.unit_count)} ${diff.unit}${of.unit_count === 1 ? '' : 's'}`;
  }).join(' · ');
  if (report.missing) document.getElementById('about').before(el('p', { class: 'broken', role: 'alert', text: report.missing }));
  document.getElementById('footer').textContent = `${report.program} · times are the mean of a ${diff.unit} over all ${diff.unit}s and ranks · the same traces give the same page`;
  document.getElementById('tabs').remove();
  const timelines = pair(sides);
  document.getElementById('panels').append(
    el('p', { id: 'verdict', class: `headline ${verdict.outcome}`, text: verdict.text }),
    verdict.explained_pct == null ? '' : note(`The named parts explain the change to within ${(100 - verdict.explained_pct).toFixed(1)} %; the rest is noise.`),
    ...distributions(diff, sides), ...where(diff), ...kernels(diff), ...operators(diff),
    report.left_out_count ? note(`${count(report.left_out_count)} more changes are within the noise or smaller; rowmill trace diff --by kernel, operator, path, host or call lists all.`) : '',
    ...timelines.parts);
  timelines.ready();
  return { errors, timelines: timelines.views };
}

function distributions(diff, sides) {
  const of = [diff.before, diff.after];
  const rows = sides.map((side, at) => ({ label: ['before', 'after'][at], values: side.units_ns, p50: of[at].p50_ns, ...of[at] }));
  const column = (title, key) => ({ title, kind: 'ns', get: (row) => row[key] });
  return [heading(`Time of a ${diff.unit}`), strokes(rows, 'compute'),
    note(`Each line is one ${diff.unit} of one rank; dark lines are medians.`),
    table([{ title: '', kind: 'text', get: (row) => row.label }, { title: `${diff.unit}s`, kind: 'count', get: (row) => row.unit_count },
      column('mean', 'mean_ns'), column('min', 'min_ns'), column('p5', 'p5_ns'), column('p50', 'p50_ns'), column('p95', 'p95_ns'), column('max', 'max_ns')], rows)];
}

function where(diff) {
  const parts = diff.parts.filter((part) => part.before_ns !== 0 || part.after_ns !== 0);
  const totals = diff.totals.filter((part) => part.before_ns !== 0 || part.after_ns !== 0);
  const hasDevice = diff.totals.some((part) => part.part === 'busy' && (part.before_ns !== 0 || part.after_ns !== 0));
  if (!hasDevice) return [heading(`Breakdown of a ${diff.unit}`), note('No device work was recorded. The operators and calls below show the changes.')];
  const bars = ['before', 'after'].map((side) => ({ label: side, parts: parts.map((part) => ({ key: part.part, value: part[`${side}_ns`] })), value: nanos(diff[side].p50_ns) }));
  return [heading(`Breakdown of a ${diff.unit}`), stackedBars(bars), legend(parts.map((part) => part.part)),
    note(`Bars and table show medians over the ${diff.unit}s. The changes between the bars are differences of means, which add up.`),
    waterfall(diff.verdict.before_ns, diff.verdict.after_ns, parts.map((part) => ({ ...part, delta_ns: part.mean_delta_ns }))), partsTable(parts, diff.unit),
    el('h3', { text: 'Total times, including overlapped work' }), partsTable(totals, diff.unit)];
}

function kernels(diff) {
  const all = diff.changes.filter((row) => row.subject === 'kernel');
  const kinds = [['Slower', 'both', 1], ['Added', 'added', 1], ['Faster', 'both', -1], ['Removed', 'removed', -1]];
  return [heading('Kernels, copies and sets: time on the device'), note('By name and shape: grid and block of kernels, bytes of copies and sets.'),
    el('div', {}, kinds.map(([title, presence, sign]) => {
      const rows = all.filter((row) => row.presence === presence && (presence !== 'both' || Math.sign(row.delta_ns) === sign));
      return el('div', { id: `kernels-${title.toLowerCase()}` }, el('h3', { text: `${title}: ${rows.length ? signedNanos(sum(rows.map((row) => row.delta_ns))) : 'none'}` }),
        rows.length ? changesTable(rows, diff.unit, { name: 'kernel' }) : '');
    }))];
}

function operators(diff) {
  const of = (subject) => diff.changes.filter((row) => row.subject === subject);
  const part = (title, subject, name) => {
    const rows = of(subject);
    return rows.length ? el('div', {}, el('h3', { text: say(title) }), changesTable(rows, diff.unit, { name })) : '';
  };
  if (!['operator', 'host', 'call'].some((subject) => of(subject).length)) return [];
  return [heading('Operators and calls'), el('div', {},
    part('Operators: self device time', 'operator', 'operator'),
    part('Operators: self host time', 'host', 'operator'),
    part('Calls of the runtime and driver: host time', 'call', 'call'))];
}

// Both timelines on the same scale; they move together.
function pair(sides) {
  const shown = sides.filter((side) => side.timeline.event_count > 0);
  if (shown.length === 0) return { parts: [], views: [], ready: () => {} };
  const whole_ns = Math.max(...shown.map((side) => side.timeline.end_ns - side.timeline.start_ns));
  const views = [];
  shown.forEach((side, at) => {
    const moved = (from, until) => views.forEach((view, other) => { if (other !== at) view.follow(from, until); });
    views.push(timelineView({ timeline: side.timeline, steps: { rows: side.steps } }, () => {}, { id: `timeline-${at}`, whole_ns, moved, isPart: true, hasKeys: at === shown.length - 1 }));
  });
  const parts = [heading('One step of each recording, on the same scale'), note('Each timeline shows the step closest to the median. Both move and zoom together. A button shows the critical path of each.')];
  shown.forEach((side, at) => {
    const step = side.timeline.steps.length ? `, step ${side.timeline.steps[0]}` : '';
    parts.push(el('h3', { text: `${sides[0] === side ? 'before' : 'after'}: ${side.name}${step}` }), el('div', { class: 'pair', id: `side-${at}` }, views[at].element));
  });
  return { parts, views, ready: () => views.forEach((view) => view.follow(-whole_ns * 0.02, whole_ns * 1.02)) };
}

window.rowmill = start();
