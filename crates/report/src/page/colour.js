// Maps each category to its CSS class, so that it has the same color in all plots.

const COLOUR = {
  compute: 'compute', communication: 'communication', memory: 'memory', other: 'other', idle: 'idle',
  exposed_communication: 'communication', exposed_memory: 'memory', exposed_other: 'other',
  communication_transfer: 'communication', communication_wait: 'wait', wait: 'wait', transfer: 'communication',
  host_operator: 'operator', cpu_work: 'operator', operator: 'operator', annotation: 'annotation',
  runtime_call: 'runtime', runtime: 'runtime', driver: 'driver', synchronization_return: 'sync', sync_drain: 'sync',
  sync: 'sync', python: 'python', overhead: 'overhead', unknown: 'unknown', untraced_host: 'untraced', untraced: 'untraced', python_frame: 'python',
  data_loading: 'input', input: 'input', launch_delay: 'delay', device_gap: 'gap', kernel_wait: 'gap',
  dependency: 'dependency', unlinked: 'unknown', head: 'edge', tail: 'edge',
};

const MEANING = {
  compute: 'a device computes', exposed_communication: 'communication without concurrent compute',
  exposed_memory: 'copies or sets without concurrent work', exposed_other: 'unclassified work without concurrent work',
  idle: 'no stream of the device works',
  sync_drain: 'the launching thread still waited for the device', input: 'the thread fetched the next batch',
  cpu_work: 'the thread ran operators or Python', runtime: 'the thread was in a call of the runtime or driver',
  untraced: 'no recorded activity on the thread', launch_delay: 'from the launch to the start of its work',
  kernel_wait: 'launched before; the short pause between two rows', dependency: 'launched, but waited for other work, an event or a rank',
  unlinked: 'the launch was not recorded', head: 'before the first work of the device', tail: 'after its last work',
  host_operator: 'an operator on a thread', runtime_call: 'a call of the runtime or driver',
  synchronization_return: 'from the end of the work to the return of the waiting call',
  python_frame: 'a thread in a recorded frame of Python, outside operators and calls',
  untraced_host: 'a thread between recorded events, outside recorded frames of Python', data_loading: 'loading input',
  memory: 'a device copies or sets memory', communication: 'communication, not separated into transfer and waiting',
  communication_transfer: 'after the last rank arrived', communication_wait: 'waiting for the last rank',
  device_gap: 'a device between two kernels',
};

function meaning(key) { return say(MEANING[key] ?? ''); }

function colour(key) { return `k-${COLOUR[key] ?? 'unknown'}`; }

function legend(keys) {
  return el('ul', { class: 'legend' }, keys.map((key) =>
    el('li', { title: meaning(key) }, el('i', { class: colour(key) }), words(key))));
}
