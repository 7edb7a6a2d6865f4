// Tables with sorting, search, details of a row, and a limit of shown rows.

const KINDS = {
  name: { show: plain, left: true, class: 'left name' },
  text: { show: (value) => String(value ?? ''), left: true, class: 'left' },
  wrap: { show: (value) => String(value ?? ''), left: true, class: 'left wrap' },
  words: { show: words, left: true, class: 'left' },
  ns: { show: nanos }, count: { show: count }, percent: { show: percent }, bytes: { show: bytes }, number: { show: number },
};

// columns: { title, kind, get, tip?, cell?, bar? }; options: { sort?, top?, detail?, caption?, search? }
function table(columns, rows, options = {}) {
  const top = options.top ?? 15;
  const state = { column: options.sort ?? null, descending: true, isWhole: false, wanted: '' };
  const body = el('tbody');
  const more = el('div', { class: 'more' });
  const peaks = new Map(columns.filter((c) => c.bar).map((c) => [c, c.kind === 'percent' ? 100 : Math.max(1e-9, ...rows.map((row) => c.get(row) ?? 0))]));

  const heads = columns.map((column, at) => {
    const sort = () => {
      state.descending = state.column === at ? !state.descending : !(KINDS[column.kind] ?? {}).left;
      state.column = at;
      draw();
    };
    return el('th', { scope: 'col', class: (KINDS[column.kind] ?? {}).class },
      el('button', { type: 'button', text: say(column.title), title: say(column.tip), on: { click: sort } }));
  });

  function ordered() {
    const wanted = state.wanted.toLowerCase();
    const matches = (row) => columns.some((c) => (KINDS[c.kind] ?? {}).left && String(c.get(row) ?? '').toLowerCase().includes(wanted));
    const kept = wanted ? rows.filter(matches) : [...rows];
    if (state.column == null) return kept;
    const { get } = columns[state.column];
    const sign = state.descending ? -1 : 1;
    const compare = (a, b) => {
      if (a == null || b == null) return (a == null) - (b == null);
      return sign * (typeof a === 'string' ? a.localeCompare(b) : a - b);
    };
    return kept.map((row, at) => [row, at]).sort((a, b) => compare(get(a[0]), get(b[0])) || a[1] - b[1]).map(([row]) => row);
  }

  function line(row) {
    const cells = columns.map((column, at) => {
      const kind = KINDS[column.kind] ?? KINDS.text;
      const value = column.get(row);
      const cell = el('td', { class: kind.class });
      const isName = kind.class?.includes('name');
      const place = isName ? cell.appendChild(el('div', { class: 'cell-name' })) : cell;
      if (at === 0 && options.detail) place.append(opener(row, () => cell.parentElement), ' ');
      if (column.bar) place.append(bar(column, row));
      if (column.cell) place.append(column.cell(row));
      else if (isName) place.append(el('span', { text: kind.show(value) }));
      else place.append(column.bar ? el('span', { class: 'cell-number', text: kind.show(value) }) : kind.show(value));
      if (isName) cell.title = column.full ? column.full(row) : String(value);
      return cell;
    });
    return el('tr', {}, cells);
  }

  function bar(column, row) {
    const share = Math.max(0, Math.min(1, (column.get(row) ?? 0) / peaks.get(column)));
    const fill = el('span', { class: `cell-bar ${column.bar(row)}`, style: { width: `${(60 * share).toFixed(1)}px` } });
    return el('span', { class: 'cell-bar-room' }, fill);
  }

  function opener(row, place) {
    const button = el('button', { type: 'button', class: 'expand', text: '▸', 'aria-expanded': 'false', 'aria-label': 'details' });
    button.addEventListener('click', () => {
      const own = place();
      const isOpen = button.getAttribute('aria-expanded') === 'true';
      button.textContent = isOpen ? '▸' : '▾';
      button.setAttribute('aria-expanded', String(!isOpen));
      own.classList.toggle('open', !isOpen);
      if (isOpen) own.nextElementSibling.remove();
      else own.after(el('tr', {}, el('td', { class: 'detail', colspan: columns.length }, options.detail(row))));
    });
    return button;
  }

  function draw() {
    heads.forEach((head, at) => {
      if (at === state.column) head.setAttribute('aria-sort', state.descending ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    const all = ordered();
    const shown = state.isWhole ? all : all.slice(0, top);
    body.replaceChildren(...shown.map(line));
    more.replaceChildren();
    if (all.length > top) {
      const text = state.isWhole ? `show the first ${top}` : `show all ${count(all.length)}`;
      more.append(link(text, () => { state.isWhole = !state.isWhole; draw(); }));
    }
  }

  draw();
  const parts = [];
  if (options.search && rows.length > top) {
    const field = el('input', { type: 'search', placeholder: say(options.search), 'aria-label': say(options.search) });
    field.addEventListener('input', () => { state.wanted = field.value; draw(); });
    parts.push(el('div', { class: 'tools' }, field));
  }
  if (rows.length === 0) return note(options.empty ?? 'None.');
  const caption = options.caption ? el('caption', { text: say(options.caption) }) : null;
  parts.push(el('div', { class: 'scroll' }, el('table', {}, caption, el('thead', {}, el('tr', {}, heads)), body)), more);
  return el('div', {}, parts);
}
