//! Draws random programs of host threads and device streams, and derives the same programs with one
//! change. This module does not depend on traces or on their analysis.

/// A small random number generator (Steele, Lea, Flood: SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a random number between 0 and 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.share() < share
    }

    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.share() * (high - low + 1) as f64) as i64
    }

    /// Returns a number whose logarithm is uniform, so that 1 to 10 is as likely as 10 to 100.
    pub fn scale(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + self.share() * (high.ln() - low.ln())).exp()
    }
}

/// The delays and limits of the hardware and its driver, in nanoseconds where they are times.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Number of pieces of work that a device's queue holds, for all its streams together.
    pub queue_depth: usize,
    /// Number of places that must become free before a launch that found the queue full continues.
    pub wake_batch: usize,
    pub wake_ns: i64,
    /// Time from the issue of a launch to the start of its work on an empty stream.
    pub launch_latency_ns: i64,
    /// Time between two consecutive pieces of work of a stream.
    pub gap_ns: i64,
    pub launch_call_ns: i64,
    pub other_call_ns: i64,
    pub sync_return_ns: i64,
}

/// One instruction of a host thread.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// An operator that runs on the host alone; a name of `None` stands for time that is not
    /// recorded.
    Host {
        name: Option<&'static str>,
        ns: i64,
    },
    Kernel {
        name: &'static str,
        stream: usize,
        ns: i64,
    },
    CopyIn {
        stream: usize,
        ns: i64,
    },
    /// A copy to pageable memory, whose call returns when the copy is done.
    CopyOut {
        stream: usize,
        ns: i64,
    },
    Record {
        event: usize,
        stream: usize,
    },
    StreamWait {
        event: usize,
        stream: usize,
    },
    EventQuery,
    EventSync {
        event: usize,
    },
    StreamSync {
        stream: usize,
    },
    DeviceSync,
    /// A collective in which all ranks meet.
    Collective {
        id: usize,
        stream: usize,
        ns: i64,
    },
}

/// An instruction with its random jitter, a number between −1 and 1.
#[derive(Clone, Debug)]
pub struct Instruction {
    pub op: Op,
    pub jitter: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Rank {
    pub threads: Vec<Vec<Instruction>>,
    /// The device's clock minus the host's clock.
    pub skew_ns: i64,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub machine: Machine,
    pub ranks: Vec<Rank>,
    /// Whether the trace contains the profiler's rows of waits.
    pub has_sync_rows: bool,
}

/// Streams by their purpose.
pub const COMPUTE: usize = 0;
const SIDE: usize = 1;
const COPIES: usize = 2;
const NETWORK: usize = 3;
/// Stream on which copies run after the change that overlaps them.
const OVERLAPPED: usize = 4;
pub const STREAMS: usize = 5;
/// Number of each stream in the trace.
pub const STREAM_IDS: [i64; STREAMS] = [7, 13, 20, 24, 31];

pub const KERNELS: [&str; 4] = ["gemm", "elementwise", "reduce", "embedding"];
pub const STALL: &str = "loader_stall";

/// The change between a program and its variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// All kernels take this fraction of their time.
    Kernels(f64),
    /// Synchronizations of streams do not wait any more.
    NoStreamSyncs,
    NoEventSyncs,
    /// Copies to the device run on a stream of their own.
    CopiesOverlapped,
    /// The stalls of one rank are removed.
    NoStalls(usize),
}

impl Change {
    /// Returns the change as what-if questions, as a user of `--what-if` would ask them.
    pub fn questions(self) -> Vec<String> {
        match self {
            Self::Kernels(factor) => vec![format!("category=compute x{factor}")],
            Self::NoStreamSyncs => questions_without("cudaStreamSynchronize"),
            Self::NoEventSyncs => questions_without("cudaEventSynchronize"),
            Self::CopiesOverlapped => {
                vec!["name=\"Memcpy HtoD (Pinned -> Device)\" overlap".to_owned()]
            }
            Self::NoStalls(rank) => vec![format!("name={STALL} rank={rank} x0")],
        }
    }

    /// Returns the program with the change applied.
    pub fn applied(self, program: &Program) -> Program {
        let mut changed = program.clone();
        for (at, rank) in changed.ranks.iter_mut().enumerate() {
            for thread in &mut rank.threads {
                thread.retain(|one| match one.op {
                    Op::StreamSync { .. } => self != Self::NoStreamSyncs,
                    Op::EventSync { .. } => self != Self::NoEventSyncs,
                    Op::Host { name: Some(STALL), .. } => self != Self::NoStalls(at),
                    _ => true,
                });
                for one in thread {
                    match (&mut one.op, self) {
                        (Op::Kernel { ns, .. }, Self::Kernels(factor)) => {
                            *ns = (*ns as f64 * factor).round() as i64;
                        }
                        (Op::CopyIn { stream, .. }, Self::CopiesOverlapped) => *stream = OVERLAPPED,
                        _ => {}
                    }
                }
            }
        }
        changed
    }
}

fn questions_without(call: &str) -> Vec<String> {
    vec![format!("name={call} unblock"), format!("name={call} x0")]
}

/// Properties of a program that are drawn once for all its steps.
struct Shape {
    steps: usize,
    layers: usize,
    kernel_ns: f64,
    host_ns: f64,
    has_side_stream: bool,
    copy_ns: f64,
    /// Whether copies run on a stream of their own, for which the compute stream waits.
    has_copy_stream: bool,
    collectives: usize,
    transfer_ns: f64,
    end: End,
    stall_ns: f64,
}

/// The synchronization with which a step ends.
#[derive(Clone, Copy)]
enum End {
    Nothing,
    ReadBack,
    StreamSync,
    EventSync,
}

struct Writer<'a> {
    random: &'a mut Random,
    out: Vec<Instruction>,
    next_event: usize,
}

impl Writer<'_> {
    fn put(&mut self, op: Op) {
        let jitter = 2.0 * self.random.share() - 1.0;
        self.out.push(Instruction { op, jitter });
    }

    /// Returns a random time between half and twice the mean.
    fn ns(&mut self, mean: f64) -> i64 {
        self.random.scale(mean / 2.0, mean * 2.0) as i64
    }

    /// Makes one stream wait for the work that was launched on another.
    fn join(&mut self, from: usize, to: usize) {
        let event = self.event();
        self.put(Op::Record { event, stream: from });
        self.put(Op::StreamWait { event, stream: to });
    }

    fn event(&mut self) -> usize {
        self.next_event += 1;
        self.next_event
    }

    fn host(&mut self, mean: f64) {
        let ns = self.ns(mean);
        let name = self.random.chance(0.7).then_some("aten::op");
        self.put(Op::Host { name, ns });
    }

    fn kernel(&mut self, stream: usize, mean: f64) {
        let name = KERNELS[self.random.between(0, 3) as usize];
        let ns = self.ns(mean);
        self.put(Op::Kernel { name, stream, ns });
    }
}

/// Draws the program of a seed, and the change to apply to it.
pub fn draw(seed: u64) -> (Program, Change) {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x1234_5678);
    let machine = Machine {
        queue_depth: random.between(24, 256) as usize,
        wake_batch: random.between(1, 3) as usize,
        wake_ns: random.between(500, 4_000),
        launch_latency_ns: random.between(2_000, 12_000),
        gap_ns: random.between(600, 2_500),
        launch_call_ns: random.between(2_500, 9_000),
        other_call_ns: random.between(800, 4_000),
        sync_return_ns: random.between(1_500, 12_000),
    };
    let rank_count = if random.chance(0.3) { random.between(2, 4) as usize } else { 1 };
    let ends = [End::Nothing, End::ReadBack, End::StreamSync, End::EventSync];
    let shape = Shape {
        steps: random.between(3, 6) as usize,
        layers: random.between(10, 70) as usize,
        kernel_ns: random.scale(4e3, 300e3),
        host_ns: random.scale(3e3, 80e3),
        has_side_stream: random.chance(0.3),
        copy_ns: random.scale(10e3, 600e3),
        has_copy_stream: random.chance(0.5),
        collectives: if rank_count > 1 { random.between(1, 3) as usize } else { 0 },
        transfer_ns: random.scale(20e3, 800e3),
        end: ends[random.between(0, 3) as usize],
        stall_ns: random.scale(100e3, 3e6),
    };
    let has_feeder = random.chance(0.25);
    let is_synchronized = random.chance(0.8);
    let slow = random.between(0, rank_count as i64 - 1) as usize;
    let stalls_all = random.chance(0.3);
    let mut ranks = Vec::new();
    for rank in 0..rank_count {
        let stalls = rank_count == 1 || rank == slow || stalls_all;
        let mut threads = vec![main_thread(&mut random, &shape, stalls)];
        if has_feeder {
            threads.push(feeder_thread(&mut random, &shape));
        }
        if is_synchronized {
            let mut writer = Writer { random: &mut random, out: Vec::new(), next_event: 0 };
            writer.put(Op::DeviceSync);
            threads[0].extend(writer.out);
        }
        let skew_ns = random.between(-15_000, 15_000);
        ranks.push(Rank { threads, skew_ns });
    }
    let has_sync_rows = random.chance(0.4);
    let change = change(&mut random, &shape, slow);
    (Program { machine, ranks, has_sync_rows }, change)
}

fn change(random: &mut Random, shape: &Shape, slow: usize) -> Change {
    match random.between(0, 9) {
        0..=4 => {
            let factors = [0.0, 0.25, 0.5, 0.75, 0.9, 1.5, 2.0, 3.0];
            Change::Kernels(factors[random.between(0, 7) as usize])
        }
        5 | 6 => match shape.end {
            End::StreamSync => Change::NoStreamSyncs,
            End::EventSync => Change::NoEventSyncs,
            _ => Change::NoStalls(slow),
        },
        7 => Change::CopiesOverlapped,
        _ => Change::NoStalls(slow),
    }
}

fn main_thread(random: &mut Random, shape: &Shape, stalls: bool) -> Vec<Instruction> {
    let mut writer = Writer { random, out: Vec::new(), next_event: 0 };
    let out = &mut writer;
    let mut collective = 0;
    for _ in 0..shape.steps {
        out.host(shape.host_ns);
        if stalls {
            let ns = out.ns(shape.stall_ns);
            out.put(Op::Host { name: Some(STALL), ns });
        }
        let copies = if shape.has_copy_stream { COPIES } else { COMPUTE };
        let ns = out.ns(shape.copy_ns);
        out.put(Op::CopyIn { stream: copies, ns });
        if shape.has_copy_stream {
            out.join(COPIES, COMPUTE);
        }
        for _ in 0..shape.layers {
            out.host(shape.host_ns);
            let launches = out.random.between(1, 3);
            for _ in 0..launches {
                out.kernel(COMPUTE, shape.kernel_ns);
            }
            if shape.has_side_stream && out.random.chance(0.1) {
                out.join(COMPUTE, SIDE);
                out.kernel(SIDE, shape.kernel_ns);
                out.kernel(COMPUTE, shape.kernel_ns);
                out.join(SIDE, COMPUTE);
            }
            if out.random.chance(0.05) {
                out.put(Op::EventQuery);
            }
        }
        for _ in 0..shape.collectives {
            out.join(COMPUTE, NETWORK);
            let ns = out.ns(shape.transfer_ns);
            out.put(Op::Collective { id: collective, stream: NETWORK, ns });
            collective += 1;
            out.kernel(COMPUTE, shape.kernel_ns);
        }
        if shape.collectives > 0 {
            out.join(NETWORK, COMPUTE);
        }
        for _ in 0..3 {
            out.host(shape.host_ns);
            out.kernel(COMPUTE, shape.kernel_ns);
        }
        match shape.end {
            End::Nothing => {}
            End::ReadBack => out.put(Op::CopyOut { stream: COMPUTE, ns: 2_000 }),
            End::StreamSync => out.put(Op::StreamSync { stream: COMPUTE }),
            End::EventSync => {
                let event = out.event();
                out.put(Op::Record { event, stream: COMPUTE });
                out.kernel(COMPUTE, shape.kernel_ns);
                out.put(Op::EventSync { event });
            }
        }
    }
    writer.out
}

/// Returns the instructions of a second thread that launches on a stream of its own.
fn feeder_thread(random: &mut Random, shape: &Shape) -> Vec<Instruction> {
    let mut out = Writer { random, out: Vec::new(), next_event: 1_000_000 };
    for _ in 0..shape.steps * 4 {
        out.host(shape.host_ns * 8.0);
        out.kernel(SIDE, shape.kernel_ns);
        if out.random.chance(0.3) {
            out.put(Op::StreamSync { stream: SIDE });
        }
    }
    out.out
}
