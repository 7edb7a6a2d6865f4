// The execution graph around an operator: neighboring operators, launched work, and waits between them.
// Nodes can be selected.

const EDGE_STROKE = { launch: 'var(--c-runtime)', queue: 'var(--soft)', event: 'var(--c-other)', wait: 'var(--c-sync)' };

function executionView(names, act) {
  const SHOWN = 9, BOX = 126, GAP = 8, ROW = 62, LEFT = 150;
  const element = el('div', {});

  function draw({ predicted, edges }, chosen) {
    const { lanes, bars } = predicted;
    const at = Math.max(0, chosen);
    const launches = edges.filter(([, , kind]) => kind === 'launch');
    const owner = new Map(launches.map(([from, to]) => [to, from]));
    const operators = bars.map((_, place) => place).filter((place) => bars[place].kind === 'operator' && !owner.has(place));
    const middle = bars[at]?.kind === 'operator' ? at : owner.get(at) ?? at;
    const own = operators.filter((place) => bars[place].lane === bars[middle]?.lane);
    const first = Math.max(0, Math.min(own.length - SHOWN, own.indexOf(middle) - (SHOWN >> 1)));
    const columns = own.slice(first, first + SHOWN);
    const used = new Map();
    const place = new Map();
    columns.forEach((one, column) => place.set(one, { column, lane: bars[one].lane, deep: 0 }));
    for (const [from, to] of launches) {
      const column = columns.indexOf(from);
      if (column < 0) continue;
      const key = `${column}/${bars[to].lane}`;
      const deep = used.get(key) ?? 0;
      used.set(key, deep + 1);
      if (deep < 3) place.set(to, { column, lane: bars[to].lane, deep });
    }
    const rows = [...new Set([...place.values()].map(({ lane }) => lane))].sort((a, b) => a - b);
    const tops = new Map();
    let top = 6;
    for (const lane of rows) {
      tops.set(lane, top);
      const deepest = Math.max(...[...place.values()].filter((one) => one.lane === lane).map(({ deep }) => deep));
      top += ROW + deepest * 34;
    }
    const box = (one) => { const of = place.get(one); return { x: LEFT + of.column * (BOX + GAP), y: tops.get(of.lane) + of.deep * 34 }; };
    const drawn = edges.filter(([from, to]) => place.has(from) && place.has(to)).map(([from, to, kind]) => {
      const [a, b] = [box(from), box(to)];
      const [x1, y1, x2, y2] = [a.x + BOX / 2, a.y + 28, b.x + BOX / 2, b.y];
      return svg('path', { d: `M${x1} ${y1} C${x1} ${y1 + 18} ${x2} ${y2 - 18} ${x2} ${y2}`, fill: 'none', stroke: EDGE_STROKE[kind], 'stroke-width': 1.4 }, svg('title', { text: kind }));
    });
    const calls = columns.slice(1).map((one, index) => {
      const [a, b] = [box(columns[index]), box(one)];
      return svg('line', { x1: a.x + BOX, x2: b.x, y1: a.y + 14, y2: b.y + 14, stroke: 'var(--text)', 'stroke-width': 1.4 });
    });
    const nodes = [...place.keys()].map((one) => {
      const { x, y } = box(one);
      const bar = bars[one];
      const text = (dy, size, content) => svg('text', { x: x + 5, y: y + dy, 'font-size': size, fill: 'var(--text)', text: content });
      return svg('g', { role: 'button', tabindex: 0, 'aria-label': names()[bar.name], on: { click: () => act(one), keydown: (event) => event.key === 'Enter' && act(one) } },
        svg('rect', { x, y, width: BOX, height: 28, rx: 3, fill: 'var(--panel)', stroke: one === chosen ? 'var(--mark)' : BAR_FILL[bar.kind], 'stroke-width': one === chosen ? 3 : 1.6 }),
        text(12, 10, shortened(names()[bar.name].replace(/^void /, ''), 17)), text(23, 9, nanos(bar.end_ns - bar.start_ns)),
        svg('title', { text: `${names()[bar.name]}\n${names()[bar.sizes]}` }));
    });
    element.replaceChildren(
      svg('svg', { viewBox: `0 0 ${LEFT + SHOWN * (BOX + GAP)} ${top}`, width: '100%', role: 'group', 'aria-label': 'execution graph' },
        rows.map((lane) => svg('text', { x: 4, y: tops.get(lane) + 17, 'font-size': 11, fill: 'var(--soft)', text: lanes[lane] })),
        drawn, calls, nodes),
      el('p', { class: 'note' }, press('earlier', () => act(own[Math.max(0, own.indexOf(middle) - SHOWN)])), ' ', press('later', () => act(own[Math.min(own.length - 1, own.indexOf(middle) + SHOWN)])),
        ` operators ${first + 1} to ${first + columns.length} of ${own.length} of ${lanes[bars[middle]?.lane] ?? 'no thread'}`));
  }

  return { element, draw };
}
