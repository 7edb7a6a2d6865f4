// The page of a prediction: errors, both timelines, the execution graph, and edits if a server computes them.

const errors = [];
window.addEventListener('error', (problem) => errors.push(String(problem.message)));
window.addEventListener('unhandledrejection', (problem) => errors.push(String(problem.reason)));

function start() {
  let view = JSON.parse(document.getElementById('data').textContent);
  const server = JSON.parse(document.getElementById('server').textContent);
  const names = () => view.names;
  const recorded = view.ranks.map((rank) => rank.measured);
  const state = { rank: slowest(), chosen: 0, edits: [], isOne: false, answered_ms: null };
  document.getElementById('title').textContent = view.title;
  document.getElementById('footer').textContent = `${view.program} · predicted step beside the recorded one · ${server ? 'edits are computed by rowmill predict serve' : 'saved page; edits need rowmill predict serve'}`;
  document.getElementById('tabs').remove();
  const about = document.getElementById('about');
  const [facts, errorsOfRanks, panel, problem] = ['facts', '', '', 'broken'].map((name) => el('div', { class: name || null }));
  problem.setAttribute('role', 'alert');
  const bars = barsView(names, (side, place) => side === 1 && choose(place));
  const graph = executionView(names, choose);
  const chooser = choice('rank', view.ranks.map(({ row }, at) => [at, `rank ${row.rank}`]), (at) => { state.rank = Number(at); state.chosen = 0; show(true); });
  chooser.value = state.rank;
  document.getElementById('actions').append(chooser);
  document.getElementById('panels').append(problem, facts, panel,
    heading('The execution graph of the predicted step'), note('Operators in the order of their calls, above what they launch; lines show launches, queues, events and waits. Select a node to edit it or all operators of its name.'), graph.element,
    heading('Recorded and predicted, on one scale'), note('Turn the wheel to zoom, drag to move.'), bars.element,
    heading('Prediction error'), errorsOfRanks);

  function slowest() {
    const steps = view.ranks.map(({ row }) => row.step_ns);
    return steps.indexOf(Math.max(...steps));
  }

  function choose(place) { if (place != null) { state.chosen = place; show(false); } }

  function show(isWhole) {
    const rank = view.ranks[Math.min(state.rank, view.ranks.length - 1)];
    state.chosen = Math.min(state.chosen, rank.predicted.bars.length - 1);
    const { row } = rank;
    about.textContent = `rank ${row.rank} · ${view.edits ? 'with edits' : 'no edits'}`;
    facts.replaceChildren(fact(nanos(rank.measured_ns), 'recorded'), fact(nanos(row.base_ns), 'predicted without edits'), fact(percent(rank.error_pct), 'prediction error'),
      fact(nanos(row.step_ns), 'predicted with edits'), fact(`${nanos(row.low_ns)} to ${nanos(row.high_ns)}`, '90 % of draws'), fact(nanos(row.saving_ns), 'saving'), fact(percent(row.modeled_pct), 'modeled prices'));
    bars.show([['recorded', rank.measured, false], [view.edits ? 'predicted, with edits' : 'predicted', rank.predicted, true]], isWhole);
    bars.choose([state.chosen]);
    graph.draw(rank, state.chosen);
    panel.replaceChildren(...editor(rank));
    const column = (title, kind, get) => ({ title, kind, get });
    errorsOfRanks.replaceChildren(table([column('rank', 'count', (one) => one.row.rank), column('recorded', 'ns', (one) => one.measured_ns), column('predicted', 'ns', (one) => one.row.base_ns),
      column('error', 'percent', (one) => one.error_pct), column('with edits', 'ns', (one) => one.row.step_ns), column('saving', 'ns', (one) => one.row.saving_ns), column('saving in %', 'percent', (one) => one.row.saving_pct),
      column('busy', 'ns', (one) => one.row.busy_ns), column('idle', 'percent', (one) => one.row.idle_pct), column('modeled', 'percent', (one) => one.row.modeled_pct)], view.ranks, { top: 64 }));
  }

  // The operator of the chosen node, and the kernels it launches.
  function selection(rank) {
    const { bars: all } = rank.predicted;
    const launches = rank.edges.filter(([, , kind]) => kind === 'launch');
    const isOperator = all[state.chosen].kind === 'operator';
    const operator = isOperator ? state.chosen : launches.find(([, to]) => to === state.chosen)?.[0];
    const kernels = isOperator ? launches.filter(([from]) => from === state.chosen).map(([, to]) => to) : [state.chosen];
    const name = operator == null ? null : names()[all[operator].name];
    const later = operator == null ? undefined : launches.find(([from]) => from > operator && all[from].lane === all[operator].lane && names()[all[from].name] !== name);
    const number = all.slice(0, operator ?? 0).filter((bar) => bar.kind === 'operator' && names()[bar.name] === name).length;
    return { name, number, kernels: [...new Set(kernels.map((place) => names()[all[place].name]))], join: later && names()[all[later[0]].name] };
  }

  function editor(rank) {
    const { name, number, kernels, join } = selection(rank);
    const text = view.edits ? el('pre', { text: view.edits, style: { 'white-space': 'pre-wrap', 'overflow-wrap': 'anywhere' } }) : null;
    const sizes = names()[rank.predicted.bars[state.chosen].sizes];
    const chosen = el('p', { title: sizes }, el('b', { text: name ?? kernels[0] ?? 'nothing' }), kernels.length && name ? ` with ${kernels.length} kind${kernels.length === 1 ? '' : 's'} of work` : '', sizes ? ` · ${shortened(sizes, 120)}` : '');
    if (!server) return [chosen, text];
    const factor = el('input', { type: 'number', min: 0, step: 0.1, value: 0.5, 'aria-label': 'factor', style: { width: '5em' } });
    const those = () => state.isOne ? `${name}[${number}]` : name;
    const one = el('input', { type: 'checkbox', id: 'edit-one', checked: state.isOne, on: { change: () => { state.isOne = one.checked; } } });
    const add = (...edits) => ask([...state.edits, ...edits]);
    const button = (label, id, isUsable, act) => press(label, act, { id, disabled: !isUsable });
    return [el('h2', { text: 'Edit the selected operator' }), chosen,
      name ? el('label', {}, one, ` only ${name}[${number}]; fusing and resizing apply to all operators of this name`) : null, el('p', { style: { 'max-width': 'none' } },
      button('remove', 'edit-remove', name, () => add({ kind: 'remove', operators: those() })), ' ',
      button('remove the gap before it', 'edit-gap', name, () => add({ kind: 'close-gap', before: those() })), ' ',
      button('fuse consecutive calls', 'edit-fuse', name, () => add({ kind: 'fuse', operators: name })), ' ',
      button('move to a stream', 'edit-stream', name && join && kernels.length, () => add({ kind: 'parallelise', operators: those(), join })), ' ',
      button('move to a thread', 'edit-thread', name, () => add({ kind: 'thread', operators: those() })), ' ',
      button('resize its work by', 'edit-resize', kernels.length, () => add(...kernels.map((one) => ({ kind: 'scale', kernels: one, factor: Number(factor.value) })))), ' ', factor, ' ',
      button('undo', 'edit-undo', state.edits.length, () => ask(state.edits.slice(0, -1)))),
      state.answered_ms == null ? null : note(`computed in ${state.answered_ms.toFixed(0)} ms; the file below can be passed to rowmill predict what-if --edits`), text].filter((part) => part != null);
  }

  async function ask(edits) {
    const begun = performance.now();
    const response = await fetch(`${server.edit}?${encodeURIComponent(JSON.stringify(edits))}`);
    const answer = response.ok ? await response.json() : { error: await response.text() };
    problem.textContent = answer.error ?? '';
    if (answer.error != null) return;
    state.answered_ms = performance.now() - begun;
    state.edits = edits;
    // Recorded bars are not sent again. Ranks added by edits repeat recorded ones.
    answer.ranks.forEach((rank, at) => { rank.measured = recorded[at % recorded.length]; });
    view = answer;
    show(false);
  }

  show(true);
  return { errors, state, choose, ask, view: () => view };
}

window.rowmill = start();
