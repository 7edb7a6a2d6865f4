// Plots and tables of the changes between two recordings.

// A waterfall plot: from one length to another by the change of each part.
function waterfall(before, after, parts) {
  const [left, width, step] = [190, 700, 24];
  const rows = [{ label: 'before', from: 0, until: before, key: 'annotation', text: nanos(before) }];
  let level = before;
  for (const part of parts) {
    rows.push({ label: words(part.part), from: level, until: level + part.delta_ns, key: part.part, text: signedNanos(part.delta_ns), isNoise: part.is_noise });
    level += part.delta_ns;
  }
  rows.push({ label: 'after', from: 0, until: after, key: 'annotation', text: nanos(after) });
  const most = Math.max(1, ...rows.flatMap((row) => [row.from, row.until]));
  const x = (ns) => left + width * ns / most;
  const height = rows.length * step + 4;
  const picture = svg('svg', { width: left + width + 110, height, viewBox: `0 0 ${left + width + 110} ${height}`, role: 'img',
    'aria-label': rows.map((row) => `${row.label} ${row.text}`).join(', ') });
  rows.forEach((row, at) => {
    const [low, high] = [x(Math.min(row.from, row.until)), x(Math.max(row.from, row.until))];
    const y = at * step;
    picture.append(svg('text', { x: left - 8, y: y + step / 2 + 4, 'text-anchor': 'end', text: row.isNoise ? `${row.label} (noise)` : row.label }));
    if (at + 1 < rows.length) picture.append(svg('line', { class: 'axis', x1: x(row.until), x2: x(row.until), y1: y + step - 4, y2: y + step + 4 }));
    picture.append(svg('rect', { class: colour(row.key), x: low, width: Math.max(1.5, high - low), y: y + 4, height: step - 8, opacity: row.isNoise ? 0.4 : 1 }, svg('title', { text: `${row.label}: ${row.text}` })));
    picture.append(svg('text', { x: high + 6, y: y + step / 2 + 4, text: row.text }));
  });
  return picture;
}

function signedNanos(ns) { return `${ns > 0 ? '+' : ''}${nanos(ns)}`; }

// A bar to the left or to the right of the middle.
function signedBar(ns, most) {
  const half = 40;
  const long = Math.max(ns === 0 ? 0 : 1, half * Math.min(1, Math.abs(ns) / Math.max(1, most)));
  return el('span', { class: 'cell-signed', 'aria-hidden': 'true' }, el('i', { class: ns > 0 ? 'slower' : 'faster', style: { left: `${ns > 0 ? half : half - long}px`, width: `${long}px` } }));
}

function changeColumn(rows) {
  const most = Math.max(1, ...rows.map((row) => Math.abs(row.delta_ns)));
  return { title: 'change', kind: 'ns', get: (row) => row.delta_ns, cell: (row) => el('span', {}, signedBar(row.delta_ns, most),
    el('span', { class: 'cell-number', text: signedNanos(row.delta_ns) }), el('span', { class: 'cell-noise note', text: row.noise_ns == null ? '' : row.is_noise ? 'noise' : `± ${nanos(row.noise_ns)}` })) };
}

function partsTable(rows, unit) {
  return table([
    { title: `part of a ${unit}`, kind: 'words', get: (row) => row.part, cell: (row) => el('span', {}, el('i', { class: `swatch ${colour(row.part)}` }), words(row.part)) },
    { title: 'before', kind: 'ns', get: (row) => row.before_ns }, { title: 'after', kind: 'ns', get: (row) => row.after_ns },
    changeColumn(rows), { title: '% of the change', kind: 'percent', get: (row) => row.explained_pct },
    { title: '% before', kind: 'percent', get: (row) => row.before_pct }, { title: '% after', kind: 'percent', get: (row) => row.after_pct }], rows);
}

// The number of calls per step or in the window.
function often(row, unit, side) {
  const each = row[`${side}_per_unit`];
  return unit === 'step' ? number(each) : count(row[`${side}_count`]);
}

function changesTable(rows, unit, { name, empty }) {
  return table([
    { title: name, kind: 'name', get: (row) => row.name, full: (row) => [row.name, row.shape].filter(Boolean).join(', ') },
    ...(rows.some((row) => row.shape) ? [{ title: 'shape', kind: 'text', get: (row) => row.shape }] : []),
    { title: `per ${unit}, before`, kind: 'number', get: (row) => row.before_per_unit, cell: (row) => (row.presence === 'added' ? '–' : often(row, unit, 'before')) },
    { title: 'after', kind: 'number', get: (row) => row.after_per_unit, cell: (row) => (row.presence === 'removed' ? '–' : often(row, unit, 'after')) },
    { title: 'time before', kind: 'ns', get: (row) => (row.presence === 'added' ? null : row.before_ns) },
    { title: 'time after', kind: 'ns', get: (row) => (row.presence === 'removed' ? null : row.after_ns) },
    changeColumn(rows), { title: `% of a ${unit}`, kind: 'number', get: (row) => row.unit_pct }], rows, { top: 8, search: `search ${name}s`, empty });
}
