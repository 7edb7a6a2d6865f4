// Creates elements. Strings are always inserted as text, because names in traces are untrusted.

const SVG = 'http://www.w3.org/2000/svg';

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value == null || value === false) continue;
    if (name === 'text') node.textContent = value;
    else if (name === 'on') Object.entries(value).forEach(([event, act]) => node.addEventListener(event, act));
    else if (name === 'style') Object.entries(value).forEach(([key, to]) => node.style.setProperty(key, to));
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat()) {
    if (child != null && child !== false) node.append(child);
  }
  return node;
}

function el(tag, properties, ...children) { return build(document.createElement(tag), properties, children); }

function svg(tag, properties, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

function heading(text) { return el('h2', { text: say(text) }); }

function note(text) { return el('p', { class: 'note', text: say(text) }); }

function fact(value, name, isText) {
  const shown = String(value ?? '–');
  return el('div', { class: 'fact', title: shown }, el('b', { text: shown, class: isText ? 'text' : null }), el('span', { text: say(name) }));
}

function press(text, act, properties) {
  return el('button', { type: 'button', class: 'plain', text, on: { click: act }, ...properties });
}

function link(text, act, title) {
  return el('button', { type: 'button', class: 'link', text: plain(text), title, on: { click: act } });
}

function choice(label, options, act) {
  const select = el('select', { 'aria-label': label, on: { change: () => act(select.value) } },
    options.map(([value, text]) => el('option', { value, text })));
  return select;
}
