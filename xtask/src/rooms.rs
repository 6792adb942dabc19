//! Which files may hold `unsafe`, and which rules have an exception: one line per file.

/// A file that may hold `unsafe`.
pub(crate) struct Room {
    /// Path below the root.
    pub(crate) path: &'static str,
    /// What the unsafe code there is for.
    pub(crate) reason: &'static str,
}

/// A file that may break one rule.
pub(crate) struct Exception {
    /// Name of the rule, as `cargo xtask tidy` prints it in brackets.
    pub(crate) rule: &'static str,
    /// Path below the root.
    pub(crate) path: &'static str,
    /// Why it may.
    pub(crate) reason: &'static str,
}

const fn room(path: &'static str, reason: &'static str) -> Room {
    Room { path, reason }
}

/// Every file that may hold `unsafe`. A line without a file, or whose file holds none, is refused.
pub(crate) const ROOMS: &[Room] = &[
    room("benches/peers/lamellar/src/main.rs", "calls that lamellar marks unsafe"),
    room("benches/src/benchmarks/layout.rs", "a strided copy by hand, to compare with"),
    room("benches/src/counting/allocations.rs", "an allocator that counts"),
    room("benches/src/raw.rs", "the limit: raw accesses to window memory"),
    room("conformance/tests/backings/pieces.rs", "maps files that windows lie on"),
    room("conformance/tests/budgets/mod.rs", "forges a message"),
    room("conformance/tests/pairs/mod.rs", "joins the ranks of two transports"),
    room("launcher/src/bulletin.rs", "maps what ranks tell their launcher"),
    room("launcher/src/inherited.rs", "owns files that this process inherited"),
    room("launcher/src/pmi/pmix.rs", "calls the library of PMIx"),
    room(
        "launcher/src/run/doctor/system.rs",
        "tries process_vm_readv, reads the version of the C library",
    ),
    room(
        "launcher/src/run/spawn.rs",
        "work between fork and exec; waiting for a pidfd; the signals of a thread",
    ),
    room("rma-core/src/transport/backing.rs", "declares the unsafe trait Backing"),
    room("rma-core/src/engine/outstanding.rs", "writes answers to origin buffers in flight"),
    room("rma-core/src/engine/outstanding_loom_tests.rs", "gives buffers to slots, under loom"),
    room("rma-core/src/engine/outstanding_tests.rs", "gives buffers to slots"),
    room("rma-core/src/element/combine.rs", "loops for CPUs that have wide vectors"),
    room("rma-core/src/element/pair.rs", "pairs as plain bytes"),
    room("rma-core/src/memory/atomic.rs", "atomic access to window bytes"),
    room("rma-core/src/memory/control_block.rs", "shared words as atomics"),
    room("rma-core/src/memory/by_device.rs", "one element that a device names by its address"),
    room("rma-core/src/memory/cells.rs", "whole-cell atomic access to window bytes"),
    room("rma-core/src/memory/copy.rs", "copies to and from window bytes"),
    room("rma-core/src/memory/fused.rs", "combines vectors of window bytes"),
    room("rma-core/src/memory/fused_tests.rs", "combines vectors of memory of tests"),
    room("rma-core/src/memory/lane.rs", "pieces of payloads in shared memory"),
    room("rma-core/src/collective/pieces_loom_tests.rs", "places of pieces that loom watches"),
    room("rma-core/src/memory/masked.rs", "strided copies by vectors with a mask"),
    room("rma-core/src/memory/race_tests.rs", "spans of memory that threads share"),
    room("rma-core/src/memory/strided.rs", "strided copies to and from window bytes"),
    room("rma-core/src/memory/plane.rs", "transposes to and from window bytes"),
    room("rma-core/src/memory/stripe.rs", "tests on a block over plain memory"),
    room("rma-core/src/memory/transaction.rs", "begins and ends transactions of the machine"),
    room("rma-core/src/memory/target.rs", "addresses inside a target's part, checked once"),
    room("rma-core/src/epoch/owned.rs", "guards that hold their window"),
    room("rma-core/src/epoch/request.rs", "buffers that a request owns"),
    room("rma-core/src/epoch/scope.rs", "buffers that a scope borrows"),
    room("rma-core/src/execute/cma.rs", "copies to other processes"),
    room("rma-core/src/execute/message.rs", "hands buffers to the slots of operations in flight"),
    room("rma-core/src/execute/sending.rs", "forwards buffers of callers to their route"),
    room("rma-core/src/execute/mod.rs", "buffers that a call borrows"),
    room("rma-core/src/window/mapping.rs", "maps parts into the table of targets"),
    room("rma-core/src/route/region.rs", "spans of regions of peers"),
    room("rma-core/src/serve/part.rs", "spans of this rank's own part"),
    room("rma-core/src/memory/pool.rs", "blocks of shared words, here and at peers"),
    room("rma-core/src/transport/mod.rs", "the unsafe traits of a transport, and one for boxes"),
    room(
        "rma-core/src/transport/composed.rs",
        "implements the unsafe traits by those of its halves",
    ),
    room("rma-core/src/transport/composed_tests.rs", "halves of a transport that note their calls"),
    room("rma-core/src/transport/remote.rs", "the unsafe traits of a device, forwards one call"),
    room("rma-core/src/window/device.rs", "registers the part of a window"),
    room("rma-core/src/engine/queue.rs", "deals out what transfers fetched"),
    room("rma-core/src/execute/device_tests.rs", "a device that is a program"),
    room("rma-core/src/execute/device.rs", "posts transfers of callers' bytes"),
    room("rma-core/src/transport/beneath.rs", "sends messages for the core"),
    room("rma-core/src/window/accumulate_tests.rs", "a transport that is its own peer"),
    room("rma-core/src/window/engine_tests.rs", "takes slots for forged answers"),
    room("rma-core/src/window/issue.rs", "hands buffers to the slots of operations in flight"),
    room("rma-core/src/window/attempt.rs", "the same of operations that do not wait"),
    room("rma-core/src/window/queried.rs", "hands bytes for what targets answer to slots"),
    room("rma-core/src/create/attach.rs", "vouches for memory in a test"),
    room("rma-core/src/create/sealed.rs", "slices of a sealed window"),
    room("rma-core/src/view.rs", "direct loads and stores of a part"),
    room("src/launched.rs", "forwards the unsafe trait Members"),
    room("src/local.rs", "vouches for the exchange of a job of threads"),
    room("tests/storage.rs", "vouches for memory of a device that fails"),
    room("storage/src/lock.rs", "locks ranges of files"),
    room("storage/src/striping.rs", "calls an ioctl of Lustre"),
    room("storage/src/ahead.rs", "calls what starts the writing of a file"),
    room("storage/src/lines.rs", "writes cache lines back, and maps a page to ask"),
    room("storage/src/marks.rs", "write-protects pages, and reads which were stored to"),
    room("storage/src/memory.rs", "maps files that windows lie on"),
    room("storage/src/memory_tests.rs", "loads and stores in mapped files"),
    room("storage/src/persistent/memory.rs", "vouches for the memory that it is made of"),
    room("src/network.rs", "vouches for the exchanges, for libfabric"),
    room("src/start.rs", "vouches for the exchange of the launcher"),
    room("transport-ofi/src/device.rs", "promises Remote, takes registrations back"),
    room("transport-ofi/src/join.rs", "composes transports"),
    room("transport-ofi/src/objects.rs", "promises Messages and Members"),
    room("transport-ofi/src/port_tests.rs", "promises Members of ranks that all live"),
    room("transport-ofi/src/queue.rs", "promises Endpoint, copies what was fetched"),
    room("transport-ofi/src/queue_tests.rs", "lends memory to transfers"),
    room("transport-ofi/src/sys/alias.rs", "maps memory a second time, for the network"),
    room("transport-ofi/src/sys/endpoint.rs", "sends from and receives into slots of its own"),
    room("transport-ofi/src/sys/infos.rs", "asks libfabric what there is, and reads its answer"),
    room("transport-ofi/src/sys/library.rs", "loads libfabric, and looks its functions up"),
    room("transport-ofi/src/sys/object.rs", "opens and closes objects of libfabric"),
    room("transport-ofi/src/sys/opened.rs", "gives peers access to memory, and takes it back"),
    room("transport-ofi/src/sys/pretended.rs", "is a libfabric in place of the real one, in tests"),
    room("transport-ofi/src/sys/slots.rs", "memory of messages, cut into slots"),
    room("transport-ofi/src/sys/transfer_tests.rs", "lends memory to transfers"),
    room("transport-shm/src/join.rs", "what a caller promises of the exchange"),
    room("transport-shm/src/shm_tests.rs", "vouches for the exchange of its ranks"),
    room("tests/programs/fork.rs", "forks"),
    room("conformance/tests/relay/mod.rs", "names the end of a tunnel"),
    room("conformance/tests/ofi_threads.rs", "vouches for memory that a window is made of"),
    room("conformance/src/created.rs", "vouches for memory that windows are made of"),
    room("conformance/src/generated/windows.rs", "vouches for memory that windows are made of"),
    room("conformance/src/forged.rs", "vouches for memory between canaries"),
    room("conformance/src/dynamic.rs", "vouches for memory that is attached"),
    room("rma-core/src/memory/directory.rs", "directory of attached memory, in shared memory"),
    room("rma-core/src/window/regions.rs", "spans of attached memory"),
    room("rma-core/src/window/memory.rs", "spans of memory that no other part uses"),
    room("rma-core/src/window/user.rs", "memory that users vouch for"),
    room("transport-shm/src/control.rs", "views a mapped segment as its control structures"),
    room("transport-shm/src/cma.rs", "calls process_vm_readv and process_vm_writev"),
    room("transport-shm/src/doorbell_agent_loom_tests.rs", "takes from a ring, under loom"),
    room("transport-shm/src/heap.rs", "promises `Mapped`, zeroes blocks before use"),
    room("transport-shm/src/inbox.rs", "views the message ring in a control segment"),
    room("transport-shm/src/inbox_loom_tests.rs", "looks at what two drains took, under loom"),
    room("transport-shm/src/neighbour.rs", "promises `Mapped` for a neighbour's region"),
    room("transport-shm/src/neighbour_tests.rs", "forks, and writes to the memory of its children"),
    room("transport-shm/src/ring.rs", "message ring in memory that processes share"),
    room("transport-shm/src/parent.rs", "a page that the kernel wipes in a fork"),
    room("transport-shm/src/ring_loom_tests.rs", "makes rings over plain memory, under loom"),
    room("transport-shm/src/ring_tests.rs", "makes rings over plain memory"),
    room("transport-shm/src/roster.rs", "views a mapped segment as the tables of all ranks"),
    room("transport-shm/src/segment.rs", "segments as views of mapped memory"),
    room("transport-shm/src/segment_tests.rs", "reads and writes mapped segments"),
    room("transport-shm/src/shm.rs", "implements the unsafe trait Shared"),
    room("transport-shm/tests/common/mod.rs", "reads and writes regions"),
    room("transport-shm/tests/shortage.rs", "sets resource limits in a child process"),
    room("transport-sim/src/dma.rs", "copies to and from memory that a device was given"),
    room("transport-sim/src/endpoint.rs", "implements the unsafe traits of a device"),
    room("transport-sim/src/region.rs", "zeroed memory of a simulated rank"),
    room("transport-sim/src/sim.rs", "implements the unsafe trait Shared"),
    room("transport-sim/tests/suite/common.rs", "sends messages that no core receives"),
    room("transport-sim/tests/suite/memory.rs", "reads and writes simulated regions"),
    room("transport-sim/tests/suite/party.rs", "registers memory and posts transfers"),
];

/// Every exception from a rule. A line that excuses nothing is refused.
pub(crate) const EXCEPTIONS: &[Exception] = &[
    Exception {
        rule: "global",
        path: "rma-core/src/memory/stores.rs",
        reason: "what a core has yet to show is its thread's, whichever rank that is (ADR 9)",
    },
    Exception {
        rule: "global",
        path: "rma-core/src/thread.rs",
        reason: "which thread this is, whichever rank it works for: a copy of what std says",
    },
    Exception {
        rule: "global",
        path: "rma-core/src/engine/grant.rs",
        reason: "a thread that waits holds up all ranks that it plays, whichever asked (ADR 16)",
    },
    Exception {
        rule: "global",
        path: "rma-core/src/memory/accumulate.rs",
        reason: "a block that a thread combines in during a call, whichever rank it works for",
    },
    Exception {
        rule: "global",
        path: "rma-core/src/memory/large.rs",
        reason: "how fast the machine copies is the same for all ranks of a process (ADR 23)",
    },
    Exception {
        rule: "global",
        path: "rma-core/src/memory/transaction.rs",
        reason: "whether transactions of the machine fail is the same for all ranks of a process",
    },
    Exception {
        rule: "global",
        path: "transport-ofi/src/sys/alias.rs",
        reason: "one file without content stands in for memory of all ranks of a process (ADR 56)",
    },
    Exception {
        rule: "global",
        path: "transport-ofi/src/sys/library.rs",
        reason: "what is done at signals is of a process, whichever rank loads libfabric",
    },
    Exception {
        rule: "global",
        path: "transport-ofi/src/sys/pretended.rs",
        reason: "fi_getinfo has no context: what it finds is of the thread of a test",
    },
    Exception {
        rule: "global",
        path: "rma-core/src/transport/file_mappings.rs",
        reason: "marks are in page tables, which a process has for all its ranks (ADR 47)",
    },
    Exception {
        rule: "global",
        path: "transport-shm/src/fence.rs",
        reason: "a process registers for fences once, whichever of its ranks joins first (ADR 102)",
    },
    Exception {
        rule: "word",
        path: "benches/src/plot.rs",
        reason: "`ShapeStyle` is a type of plotters",
    },
    Exception {
        rule: "core-purity",
        path: "rma-core/src/memory/large.rs",
        reason: "times copies; nothing but which kernel makes the next one depends on it (ADR 23)",
    },
];

/// Prints both lists.
pub(crate) fn print() {
    println!("files that may hold `unsafe`:");
    for Room { path, reason } in ROOMS {
        println!("  {path:<44} {reason}");
    }
    if !EXCEPTIONS.is_empty() {
        println!("exceptions from other rules:");
    }
    for Exception { rule, path, reason } in EXCEPTIONS {
        println!("  [{rule}] {path:<36} {reason}");
    }
}
