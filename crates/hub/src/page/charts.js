'use strict';
// Draws the band, lines, dots and tables of the page. Names of jobs, users and hosts are untrusted,
// so they are only ever inserted as text.

// The parts that are lost before each layer.
const LOSSES = [[], [0], [1], [2], [4, 3], [6, 5]];
const ACTIVE = 7;
// Width of a layer before its losses leave it.
const STUB = 14;
const KINDS = ['loss', 'loss', 'loss', 'unknown', 'idle', 'unknown', 'idle', 'flow'];

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === 'text') node.textContent = value;
    else if (name === 'click') node.addEventListener('click', value);
    else if (value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

function el(tag, properties, ...children) { return build(document.createElement(tag), properties, children); }

function svg(tag, properties, ...children) {
  return build(document.createElementNS('http://www.w3.org/2000/svg', tag), properties, children);
}

function amount(value) {
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 1 || size === 0 ? 1 : 3;
  // A small negative number must not become “-0”.
  return (Number(value.toFixed(digits)) + 0).toLocaleString('en', { maximumFractionDigits: digits });
}

function counted(count, word) { return `${count} ${word}${count === 1 ? '' : 's'}`; }

function unlisted(count, word) { return `${counted(count, word)} ${count === 1 ? 'is' : 'are'} not listed.`; }

function percent(share) { return share == null || !Number.isFinite(share) ? '–' : `${(share * 100).toFixed(1)} %`; }

function range([low, high]) { return percent(low) === percent(high) ? percent(low) : `${percent(low)} to ${percent(high)}`; }

function sum(values) { return values.reduce((total, value) => total + value, 0); }

function moment(time) { return time == null ? '–' : new Date(time * 1000).toISOString().slice(5, 16).replace('T', ' '); }

// Draws the band from deployed resources to active ones. Losses leave it downwards. `shares` are percentages
// that add up to 100.0, and those of layers are what is left of them.
function sankey({ layers, parts, shares, names, unit, chosen, choose }) {
  const all = sum(parts);
  const [width, height, left, step, top, base] = [1200, 200, 10, 200, 40, 290];
  const scale = height / all;
  const hatch = svg('pattern', { id: 'hatch', width: 8, height: 8, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
    svg('line', { class: 'hatch', x1: 0, x2: 0, y1: 0, y2: 8 }));
  const [bands, texts] = [[], []];
  const write = (x, y, text, soft) => texts.push(svg('text', { class: soft ? 'soft' : 'halo', x, y, text }));
  const band = (part, path, x, y) => {
    const name = `${names[part]} ${shares[part].toFixed(1)} %`;
    const group = svg('g', { class: `band${chosen === part ? ' chosen' : ''}`, role: 'button', tabindex: 0, 'aria-label': name, 'data-part': part, click: () => choose(part) },
      svg('path', { class: KINDS[part], d: path }), svg('title', { text: name }));
    write(x, y, names[part]);
    write(x, y + 16, `${shares[part].toFixed(1)} % · ${amount(parts[part])} ${unit}`, true);
    group.addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); choose(part); } });
    bands.push(group);
  };
  let [remaining, share, bottom] = [all, 100, 0];
  layers.forEach((name, at) => {
    const lost = LOSSES[at];
    const x = left + (at - 1) * step;
    const losses = lost.filter((one) => parts[one] > 0).map((part) => {
      remaining -= parts[part];
      share -= shares[part];
      return [part, parts[part] * scale, top + remaining * scale];
    });
    let y = base;
    // The loss that leaves at the lower edge ends below the others, so that they do not cross.
    for (const [part, size, from] of losses.reverse()) {
      // The curve falls at the left, so that labels are at its right.
      const [start, middle, knee, end] = [STUB, STUB + 26, STUB + 52, step * 0.94].map((width) => x + width);
      band(part, `M${start} ${from}C${middle} ${from} ${middle} ${y} ${knee} ${y}H${end}V${y + size}H${knee}C${middle} ${y + size} ${middle} ${from + size} ${start} ${from + size}Z`,
        x + 78, y + size + 16);
      y += size + 50;
      bottom = Math.max(bottom, y);
    }
    if (at > 0) bands.push(svg('rect', { class: 'flow', x, y: top, width: step, height: Math.max(0, remaining * scale) }));
    bands.push(svg('rect', { class: 'flow', x: left + at * step, y: top, width: STUB, height: Math.max(0, remaining * scale) }));
    write(left + at * step, top - 20, name);
    write(left + at * step, top - 5, `${Math.abs(share).toFixed(1)} %`, true);
  });
  const end = left + (layers.length - 1) * step;
  band(ACTIVE, `M${end} ${top}h150v${remaining * scale}h-150Z`, end, top + Math.max(remaining * scale, 4) + 18);
  const box = { viewBox: `0 0 ${width} ${Math.max(bottom, base)}`, role: 'group', 'aria-label': 'Deployed time by what it was used for' };
  return svg('svg', box, svg('defs', null, hatch), ...bands, ...texts);
}

// Draws lines over time. A line is a name, points of a time and a value, and what a click on its name does.
function chart(title, lines, format, [first, last]) {
  const [width, height, left, bottom] = [560, 150, 64, 22];
  const highest = Math.max(...lines.flatMap((line) => line.points.map(([, value]) => value ?? 0)), 1e-9);
  const x = (time) => left + ((time - first) / Math.max(1, last - first)) * (width - left - 8);
  const y = (value) => 8 + (1 - value / highest) * (height - bottom - 8);
  const path = (points) => {
    let isOpen = false;
    return points.map(([time, value]) => {
      if (value == null) { isOpen = false; return ''; }
      const word = isOpen ? 'L' : 'M';
      isOpen = true;
      // A value that stands alone is a dot.
      return `${word}${x(time).toFixed(1)} ${y(value).toFixed(1)}h0.1`;
    }).join('');
  };
  const legend = lines.length < 2 ? null : el('p', { class: 'legend' }, ...lines.map((line, at) => el('span', null,
    svg('svg', { class: 'key', viewBox: '0 0 14 10' }, svg('path', { class: `line line-${at}`, d: 'M0 5h14' })),
    line.click ? el('button', { class: 'name', type: 'button', text: line.name, click: line.click }) : el('span', { text: line.name }))));
  return el('figure', null, el('h2', { text: title }),
    svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title },
      ...[0, highest].map((value) => svg('line', { class: 'grid', x1: left, x2: width - 8, y1: y(value), y2: y(value) })),
      ...[0, highest].map((value) => svg('text', { class: 'soft', x: left - 6, y: y(value) + 4, 'text-anchor': 'end', text: format(value) })),
      svg('text', { class: 'soft', x: left, y: height - 6, text: `${moment(first)} UTC` }),
      svg('text', { class: 'soft', x: width - 8, y: height - 6, 'text-anchor': 'end', text: moment(last) }),
      ...lines.map((line, at) => svg('path', { class: `line line-${at}`, d: path(line.points) }, svg('title', { text: line.name })))),
    legend);
}

// Draws a dot for each group, by its allocated time and its efficiency.
function scatter(title, dots, unit) {
  const [width, height, left, bottom] = [560, 190, 64, 36];
  const most = Math.max(...dots.map((dot) => dot.held), 1e-9);
  const y = (share) => 8 + (1 - share) * (height - bottom - 8);
  const circles = dots.map(({ name, held, share, click }) => svg('circle', { class: 'dot', cx: left + (held / most) * (width - left - 16), cy: y(share), r: 4, tabindex: 0, click },
    svg('title', { text: `${name}: ${amount(held)} ${unit}, ${percent(share)}` })));
  const ends = [[0, 'start'], [most, 'end']].map(([value, anchor]) => svg('text', { class: 'soft', x: anchor === 'end' ? width - 8 : left, y: height - 18, 'text-anchor': anchor, text: `${amount(value)} ${unit}` }));
  return el('figure', null, el('h2', { text: title }), svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title },
    ...[0, 1].map((share) => svg('line', { class: 'grid', x1: left, x2: width - 8, y1: y(share), y2: y(share) })),
    ...[0, 1].map((share) => svg('text', { class: 'soft', x: left - 6, y: y(share) + 4, 'text-anchor': 'end', text: percent(share) })), ...ends, ...circles));
}

// Shows rows with sorted columns. A column is its name, the value by which it sorts, and its cell. `sort`
// is the name of a column, with a minus in front for descending order; without it, rows keep their order.
function table({ columns, rows, sort, sortBy }) {
  const column = columns.find(([name]) => name === sort.replace(/^-/, ''));
  const sorted = [...rows];
  if (column) {
    const [sign, value] = [sort.startsWith('-') ? -1 : 1, column[1]];
    const compare = (a, b) => (typeof a === 'string' || typeof b === 'string' ? String(a ?? '').localeCompare(String(b ?? '')) : (a ?? -Infinity) - (b ?? -Infinity));
    sorted.sort((a, b) => sign * (compare(value(a), value(b)) || 0));
  }
  // Words begin at the left, and numbers end at the right.
  const kind = (row, value) => (row && typeof value(row) === 'string' ? 'words' : null);
  const head = columns.map(([name, value]) => {
    const order = sort === name ? 'ascending' : sort === `-${name}` ? 'descending' : null;
    const mark = { ascending: ' ▲', descending: ' ▼' }[order] ?? '';
    return el('th', { 'aria-sort': order, class: kind(rows[0], value) }, el('button', { class: 'name', type: 'button', text: name + mark, click: () => sortBy(sort === `-${name}` ? name : `-${name}`) }));
  });
  const body = sorted.map((row) => el('tr', null, ...columns.map(([, value, cell]) => {
    const content = cell ? cell(row) : value(row);
    const properties = { class: kind(row, value) };
    return content instanceof Node ? el('td', properties, content) : el('td', { ...properties, text: content });
  })));
  return el('div', { class: 'scroll' }, el('table', null, el('thead', null, el('tr', null, ...head)), el('tbody', null, ...body)));
}
