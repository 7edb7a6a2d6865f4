// The page of a training run: verdict, metrics, curves over steps, tables, evaluations.

const errors = [];
window.addEventListener('error', (problem) => errors.push(String(problem.message)));
window.addEventListener('unhandledrejection', (problem) => errors.push(String(problem.reason)));

const fixed = (decimals) => (value, more) => (value == null ? '–' : value.toFixed(Math.min(more ?? decimals, 6)));
const share = (value, decimals) => (value == null ? '–' : `${(100 * value).toFixed(Math.max(0, (decimals ?? 3) - 2))} %`);
const small = (value) => (value == null ? '–' : value === 0 ? '0' : Math.abs(value) >= 0.001 ? String(Number(value.toPrecision(3))) : value.toExponential(1));
const rate = (value) => (value == null ? '–' : value >= 1e4 ? `${Number((value / 1e3).toPrecision(3))} k` : String(Math.round(value)));
const times = (value) => (value == null ? '–' : value === 0 ? '0' : `${Number(value.toPrecision(3))} ×`);
const long = (seconds) => (seconds < 100 ? `${seconds.toFixed(1)} s` : seconds < 6000 ? `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s` : `${(seconds / 3600).toFixed(1)} h`);

function start() {
  const report = JSON.parse(document.getElementById('data').textContent);
  const { verdict, evaluations, checkpoints } = report;
  document.getElementById('title').textContent = report.title;
  document.getElementById('about').textContent = [plural(report.steps, 'step'), plural(evaluations.length, 'evaluation'), plural(checkpoints.length, 'checkpoint'), ...placementOf(report)].join(' · ');
  if (report.lines_lost) document.getElementById('about').before(el('p', { class: 'doubtful', role: 'alert', text: `${plural(report.lines_lost, 'line')} of metrics.jsonl could not be read` }));
  document.getElementById('footer').textContent = `${report.program} · all plots have steps on the horizontal axis · the same metrics give the same page`;
  document.getElementById('tabs').remove();
  document.getElementById('panels').append(
    el('p', { id: 'verdict', class: `headline ${verdict.outcome}`, text: verdict.text }), verdict.detail ? el('p', { text: verdict.detail }) : '',
    figures(report), ...closingOf(report), ...curvesOf(report), ...tablesOf(report), ...evaluationsOf(report));
  return { errors };
}

function placementOf({ placement }) {
  if (!placement) return [];
  const { ranks, groups, hosts } = placement;
  return [plural(ranks, 'rank'), ...(groups > 1 ? [`${groups} replica groups`] : []), ...(hosts == null ? [] : [plural(hosts, 'host')])];
}

function plural(value, name) { return `${count(value)} ${name}${value === 1 ? '' : 's'}`; }

function figures(report) {
  const best = report.evaluations.find((one) => one.step === report.verdict.best_step) ?? report.evaluations.at(-1);
  const bytes_last = report.checkpoints.at(-1)?.bytes;
  return el('div', { class: 'facts tight' },
    best && fact(fixed(4)(best.auc), 'best held-out AUC'), best && fact(fixed(4)(best.normalized_entropy), 'normalized entropy'), best && fact(fixed(3)(best.calibration), 'calibration'),
    fact(rate(report.samples_per_second), 'samples per second'), fact(share(report.input_wait_share, 3), 'input wait'),
    fact(long(report.seconds), 'training time'), bytes_last == null ? null : fact(bytes(bytes_last), 'checkpoint size'));
}

// The best checkpoint beside the baselines, on validation and test rows.
function closingOf({ closing }) {
  if (!closing || !(closing.test || closing.baselines)) return [];
  const { base_rate, logistic_regression } = closing.baselines ?? {};
  const rows = [{ name: `checkpoint of step ${count(closing.step)}`, ...closing }, { name: 'logistic regression', ...logistic_regression }, { name: 'base rate', ...base_rate }];
  const column = (title, part, key) => ({ title, kind: 'number', get: (row) => row[part]?.[key], cell: (row) => fixed(5)(row[part]?.[key]) });
  const held = closing.test ? 'validation' : 'held-out';
  const test = closing.test ? [column('test AUC', 'test', 'auc'), column('test normalized entropy', 'test', 'normalized_entropy')] : [];
  return [heading('Model and baselines'), table([{ title: 'model', kind: 'name', get: (row) => row.name },
    column(`${held} AUC`, 'validation', 'auc'), column(`${held} normalized entropy`, 'validation', 'normalized_entropy'), ...test], rows.filter((row) => row.validation), { top: 5 })];
}

function curvesOf(report) {
  const { intervals, evaluations, verdict } = report;
  const best = verdict.best_step;
  const curve = curveSet(0, Math.max(1, report.steps), best);
  const at = (rows, key) => rows.filter((row) => row[key] != null).map((row) => [row.step, row[key]]);
  const last = (points, show) => (points.length ? `last ${show(points.at(-1)[1])}` : '');
  const held = (title, key, options) => {
    const points = at(evaluations, key);
    if (points.length === 0) return null;
    const ofBest = points.find(([step]) => step === best);
    const rest = ofBest ? `${fixed(4)(ofBest[1])} at the best, step ${count(best)}` : last(points, fixed(4));
    return curve(title, [{ name: 'held-out', style: 's-held', points, dots: true }], { show: fixed(4), rest, ...options });
  };
  const own = (title, key, style, options) => {
    const points = at(intervals, key);
    return points.length ? curve(title, [{ name: title, style, points }], { rest: last(points, options.show), ...options }) : null;
  };
  const trained = at(intervals, 'loss');
  const heldLoss = at(evaluations, 'loss');
  const groups = evaluations.filter((row) => row.by_group?.auc != null).map((row) => [row.step, row.by_group.auc]);
  const cards = [
    trained.length + heldLoss.length ? curve('Loss', [{ name: 'training', style: 's-train', points: trained, smooth: true }, { name: 'held-out', style: 's-held', points: heldLoss, dots: true }],
      { show: fixed(4), rest: trained.length ? `training ends at ${fixed(4)(trained.at(-1)[1])}` : last(heldLoss, fixed(4)) }) : null,
    held('AUC', 'auc', {}),
    held('Normalized entropy', 'normalized_entropy', { marks: evaluations.some((row) => row.normalized_entropy > 0.97) ? [{ value: 1, label: 'base rate' }] : [] }),
    held('Calibration', 'calibration', { marks: [{ value: 1, label: 'calibrated' }], show: fixed(3) }),
    groups.length ? curve('AUC by group', [{ name: 'by group', style: 's-held', points: groups, dots: true }], { show: fixed(4), rest: last(groups, fixed(4)) }) : null,
    own('Learning rate of the layers', 'learning_rate', 's-rate', { show: small, from: 0 }),
    own('Samples per second', 'samples_per_second', 's-speed', { show: rate, from: 0 }),
    own('Share of time waiting for input', 'input_wait_share', 's-input', { show: share, from: 0 }),
    intervals.some((row) => row.exchange_wait_share > 0) ? own('Share of time waiting for other ranks', 'exchange_wait_share', 's-input', { show: share, from: 0 }) : null,
    norms(report, curve),
  ].filter(Boolean);
  if (cards.length === 0) return [note('The run has no log lines yet; see training.log_every.')];
  const together = report.lines_per_point > 1 ? ` A point averages up to ${report.lines_per_point} log lines.` : '';
  return [el('div', { class: 'curves' }, cards),
    note(`${best == null ? '' : 'The dashed line is the best evaluation. '}Move the pointer over a plot to read all plots at that step.${together}`)];
}

// One plot with the norms of all tables, relative to their initial norms.
function norms(report, curve) {
  const grown = new Map();
  for (const table of report.tables) {
    for (const use of table.uses.filter((one) => one.rows_changed > 0)) grown.set(use.step, [...(grown.get(use.step) ?? []), use.row_norm / table.drawn_norm]);
  }
  const of = (pick) => [...grown].map(([step, all]) => [step, pick(all.sort((a, b) => a - b))]);
  const most = of((sorted) => sorted.at(-1));
  const median = (sorted) => (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
  if (most.length < 2) return null;
  const series = [{ name: 'largest', style: 's-train', points: most, dots: true }, { name: 'median', style: 's-rate', points: of(median), dots: true }];
  return curve('Table norm relative to initialization', report.tables.length > 1 ? series : series.slice(0, 1), { show: times, from: 0, rest: `last ${times(most.at(-1)[1])}` });
}

function tablesOf(report) {
  const rows = report.tables.filter((table) => table.uses.length > 0).map((table) => ({ ...table, last: table.uses.at(-1) }));
  if (rows.length === 0) return [];
  const used = (row) => 100 * row.last.rows_changed / Math.max(1, row.rows);
  const ratio = (row) => (row.last.rows_changed ? row.last.row_norm / row.drawn_norm : null);
  const hasMany = rows.some((row) => row.uses.length > 1);
  const columns = [
    { title: 'table', kind: 'name', get: (row) => row.name }, { title: 'rows', kind: 'count', get: (row) => row.rows }, { title: 'dim', kind: 'count', get: (row) => row.dim },
    { title: 'rows used', kind: 'count', get: (row) => row.last.rows_changed, tip: 'rows whose weights training has changed' },
    { title: '% of all rows', kind: 'percent', get: used, bar: () => 'k-compute' },
    { title: 'norm', kind: 'number', get: (row) => (row.last.rows_changed ? row.last.row_norm : null), cell: (row) => small(row.last.rows_changed ? row.last.row_norm : null), tip: 'root mean square of the L2 norms of the rows used' },
    { title: 'relative to initial norm', kind: 'number', get: ratio, cell: (row) => times(ratio(row)), tip: 'norm divided by the norm of the initial weights' },
    ...(hasMany ? [{ title: 'norm over the run', kind: 'text', get: () => '', cell: (row) => trend(row.uses.map((use) => [use.step, use.row_norm]), report.steps) }] : []),
  ];
  const step = Math.max(...rows.map((row) => row.last.step));
  return [heading('Tables'), note(`As of the checkpoint of step ${count(step)}. A row is used once training has changed its weights; the norm is the root mean square of the L2 norms of the rows used.`),
    table(columns, rows, { top: 30, search: 'search tables', ...(hasMany ? { detail: (row) => tableDetail(row, report) } : {}) })];
}

// Two plots of one table: rows used, and their norm.
function tableDetail(row, report) {
  const curve = curveSet(0, Math.max(1, report.steps), report.verdict.best_step);
  const of = (key) => row.uses.map((use) => [use.step, use[key]]);
  const last = row.uses.at(-1);
  return el('div', { class: 'curves' },
    curve('Rows used', [{ name: 'rows used', style: 's-train', points: of('rows_changed'), dots: true }], { show: (value) => shortCount(Math.round(value)), from: 0, rest: `${count(last.rows_changed)} of ${count(row.rows)}` }),
    curve('Norm of the rows used', [{ name: 'norm', style: 's-rate', points: of('row_norm'), dots: true }], { show: small, from: 0, rest: `last ${small(last.row_norm)}, initially ${small(row.drawn_norm)}` }));
}

// A sparkline, as small as a word.
function trend(points, last) {
  const [width, height] = [110, 18];
  const most = Math.max(1e-12, ...points.map((point) => point[1]));
  const line = points.map(([step, value], at) => `${at ? 'L' : 'M'}${(width * step / Math.max(1, last)).toFixed(1)} ${(height - 1 - (height - 3) * value / most).toFixed(1)}`).join('');
  return svg('svg', { class: 'spark', viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' }, svg('path', { class: 'curve s-rate', d: line }));
}

function evaluationsOf(report) {
  const { evaluations, verdict } = report;
  if (evaluations.length === 0) return [];
  const column = (title, key, decimals) => ({ title, kind: 'number', get: (row) => row[key], cell: (row) => fixed(decimals)(row[key]) });
  const groups = evaluations.some((row) => row.by_group) ? [{ title: 'AUC by group', kind: 'number', get: (row) => row.by_group?.auc, cell: (row) => fixed(5)(row.by_group?.auc) }] : [];
  return [heading('Evaluations'), table([
    { title: 'step', kind: 'count', get: (row) => row.step, cell: (row) => (row.step === verdict.best_step ? el('b', { text: `best ${count(row.step)}` }) : count(row.step)) },
    column('AUC', 'auc', 5), ...groups, column('normalized entropy', 'normalized_entropy', 5), column('loss', 'loss', 5), column('calibration', 'calibration', 4), column('accuracy', 'accuracy', 4),
    { title: 'held-out samples', kind: 'count', get: (row) => row.samples }], evaluations, { top: 12 })];
}

window.rowmill = start();
