//! Takes the image of the calling process. All of this runs in a signal handler of an unknown
//! program: raw system calls only, no allocation, no lock, no panic, little stack.

mod all_threads;
mod descriptors;
mod enter;
mod helper;
mod holder_records;
mod kernel_files;
mod locks;
mod memory;
mod object;
mod output;
mod proc;
mod registers;
mod scratch;
mod state;
mod surroundings;
mod thread_state;
mod vdso;
mod within;

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

pub use kernel_files::is_made_up;
pub use registers::beyond as beyond_level;

use crate::carried::Notes;
use crate::outcome::Outcome;
use crate::refusal::{Refusal, Text};
use crate::request::{Mode, Request};
use all_threads::{Own, Threads};
use descriptors::Table;
use enter::{eyrie_image_enter, eyrie_image_resume};
use eyrie_image_format::stream::Kind;
use eyrie_image_format::{
    self as format, bytes_of, bytes_of_all, fd_kind, map_flag, object_kind, writer_exit, Header,
    FILE_DESCRIPTOR, FILE_OBJECT, MAGIC, MAPS_FILES, META_MAX, NAMES_STAY, VERSION,
};
use eyrie_image_kernel::fingerprint;
use eyrie_image_kernel::sys::{self, nr};
use holder_records::Described;
use memory::{AddressSpace, Carried, Changes, Contents, FirstLook, Lifted, Range, Scan, Spared};
use output::Output;
use scratch::{List, Scratch};
use state::CapturedState;

/// A capture that is under way. It is on the stack of [`capture`].
struct Job<'a> {
    request: &'a Request<'a>,
    scratch: Scratch,
    own: &'a Own,
    started_ns: u64,
    outcome: Outcome,
}

/// Takes an image of the calling process, see [`crate::capture`].
///
/// # Safety
/// As [`crate::capture`].
pub unsafe fn capture(request: &Request) -> Outcome {
    let mask = sys::block_all_signals();
    let started_ns = sys::clock_ns(1);
    let outcome = match all_threads::begin(request.hooks, started_ns, request.context) {
        // SAFETY: the caller keeps the contract of `crate::capture`, and all signals are blocked
        // since above.
        Ok(own) => unsafe { capture_with(request, own, started_ns) },
        Err(refusal) => Outcome::Refused(refusal),
    };
    if matches!(outcome, Outcome::Restored) {
        vdso::forget();
        request.holders.iter().for_each(|holder| holder.restore());
        all_threads::resume_restored();
    }
    sys::set_signal_mask(mask);
    request.holders.iter().for_each(|holder| holder.resume(&outcome));
    outcome
}

/// # Safety
/// As [`crate::capture`], with all signals blocked.
unsafe fn capture_with(request: &Request, own: Own, started_ns: u64) -> Outcome {
    // SAFETY: the stack is used only by the call of `eyrie_image_enter` below, before the scratch
    // is released.
    let prepared = Scratch::new().and_then(|mut scratch| unsafe {
        let stack = helper::stack(&mut scratch)?;
        Ok((scratch, stack.as_mut_ptr() as usize + stack.len()))
    });
    let (scratch, stack_top) = match prepared {
        Ok(prepared) => prepared,
        Err(refusal) => {
            own.end();
            return Outcome::Refused(refusal);
        }
    };
    let outcome = Outcome::Refused(Refusal::Writer);
    let mut job = Job { request, scratch, own: &own, started_ns, outcome };
    // SAFETY: `work` has the C calling convention, and `job` outlives the call. In a restored
    // process the stack is as it was during the call, so `mask` there is the one that the caller
    // saved.
    let restored = unsafe { eyrie_image_enter(work, (&raw mut job).cast(), stack_top) };
    if restored == 1 {
        if let Some(track) = &request.track {
            track.tracker.forget();
        }
        // SAFETY: the result 1 means that this is a restored process, in the thread that took the
        // image. The scratch is not mapped there, and is not used any more.
        unsafe { own.come_back() };
        return Outcome::Restored;
    }
    // SAFETY: everything taken from the scratch is gone, and the outcome refers to none of it.
    unsafe { job.scratch.release() };
    let outcome = job.outcome;
    own.end();
    outcome
}

/// # Safety
/// `job` must be the only reference to a [`Job`].
unsafe extern "C" fn work(job: *mut c_void, rsp: u64) {
    // SAFETY: the caller, `eyrie_image_enter`, passes the pointer that `capture_with` made from its
    // only `job`.
    let job = unsafe { &mut *job.cast::<Job>() };
    job.outcome = capture_stopped(job, rsp).unwrap_or_else(Outcome::Refused);
}

/// Captures the process while its other threads stand still.
fn capture_stopped(job: &mut Job, rsp: u64) -> Result<Outcome, Refusal> {
    check_request(job.request)?;
    // SAFETY: both results are dropped at the end of this function, before the scratch is released.
    // The caller of `capture` guarantees that one capture at a time is under way.
    let (status, threads) = unsafe {
        let status = proc::Status::read(&mut job.scratch, b"/proc/thread-self/status\0")?;
        (status, Threads::stop(&mut job.scratch, job.own, rsp)?)
    };
    let mut holders = job.request.holders.iter();
    let ready = holders.try_for_each(|holder| holder.before_capture());
    let ready = ready.map_err(|what| Refusal::State { what, detail: Text::EMPTY });
    // SAFETY: the other threads stand still, and the caller of `capture` guarantees the rest of its
    // contract.
    let result = ready.and_then(|()| unsafe {
        Engine::run(&mut job.scratch, job.request, job.started_ns, &status, &threads)
    });
    threads.resume();
    result
}

/// What parent and child share while an asynchronous capture starts.
#[repr(C)]
struct Board {
    verdict: AtomicU32,
    missing: AtomicU32,
    ranges: [Lifted; BOARD_RANGES],
}
const BOARD_RANGES: usize = 4096;
/// Most attempts to clone: one may find missing mappings, and one wiped mappings.
const ATTEMPTS: usize = 3;
const PENDING: u32 = 0;
const STARTED: u32 = 1;
const MISSING: u32 = 2;
const FAILED: u32 = 3;

/// Longest wait for the child to start, nanoseconds.
const START_LIMIT_NS: u64 = 10_000_000_000;

struct Engine<'a> {
    request: &'a Request<'a>,
    table: Table,
    described: List<Described>,
    state: CapturedState,
    look: FirstLook,
    contents: Contents,
    changes: Changes,
    carried: Carried,
    cuts: List<Range>,
    lifted: List<Lifted>,
    /// A child has looked for wiped memory, and the advice on what it found is lifted.
    unwiped: bool,
    /// The child is trusted to have all memory, so the process does not wait for it. A child that
    /// has not all of it writes no image, and the next image is one with a wait.
    trusts: bool,
    /// Memory that the child need not have, because it is unchanged.
    spared: Spared,
    /// A thread stands still within the kernel's vDSO.
    within_vdso: bool,
    /// What the image demands of a processor; `None`: all that this one has.
    demand: Option<Described>,
    taken_unix_ns: u64,
    pid: u32,
    /// The thread that takes the image. /proc has the memory of this process by its id.
    tid: u64,
}

impl Engine<'_> {
    /// # Safety
    /// No other thread of the process may run.
    unsafe fn run(
        scratch: &mut Scratch,
        request: &Request,
        started_ns: u64,
        status: &proc::Status,
        threads: &Threads,
    ) -> Result<Outcome, Refusal> {
        // SAFETY: the results are dropped at the end of this function, before the caller releases
        // the scratch.
        let (buf, mut cuts) = unsafe {
            (scratch.take::<u8>(16384)?, scratch.list::<Range>(request.exclude.len() + 8192)?)
        };
        proc::check_alone(status, buf)?;
        surroundings::check(scratch, status, request.starter_pid)?;
        // Signals pending for the calling thread alone are taken with those for the process.
        let first = Some(threads.leader()).filter(|first| first.tid != sys::gettid());
        surroundings::check_threads(scratch, status, threads.others().chain(first))?;
        let (start, end) = scratch.range();
        cuts.push((start, end))?;
        let tracker = request.track.as_ref().map(|t| t.tracker);
        let track = request.track.as_ref().filter(|_| request.self_contained);
        let notes = track.map(|t| t.tracker.carried.begin(t.image)).transpose()?;
        let lists = tracker.into_iter().flat_map(|tracker| tracker.carried.ranges());
        lists.into_iter().try_for_each(|range| cuts.push(range))?;
        for &(start, len) in request.exclude {
            let last = start.saturating_add(len).next_multiple_of(sys::PAGE);
            cuts.push(((start & !(sys::PAGE - 1)) as u64, last as u64))?;
        }
        // SAFETY: the state is dropped before the scratch is released.
        let state =
            unsafe { CapturedState::take(scratch, status, request.starter_pid, threads.leader())? };
        state.context.rip = eyrie_image_resume as *const () as u64;
        let demand = match request.level {
            // SAFETY: the result is dropped before the scratch is released. The caller guarantees
            // that no other thread runs: each stands still in the handler of its context.
            Some(level) => Some(unsafe {
                let signal_stack = threads.smallest_signal_stack();
                registers::describe(scratch, level, threads.contexts(), signal_stack)?
            }),
            None => None,
        };
        // SAFETY: the results are dropped before the scratch is released.
        let (table, described, look, lifted) = unsafe {
            let tracking = tracker.map_or(-1, |t| t.descriptor());
            let own = [request.out_fd, tracking];
            let table = Table::take(scratch, own, request)?;
            let described = holder_records::describe(scratch, request.holders)?;
            let is_taken = |start: u64| {
                let mut holders = request.holders.iter();
                request.names_stay && holders.any(|holder| holder.maps_again(start as usize))
            };
            let look = FirstLook::take(scratch, cuts.as_slice(), &is_taken)?;
            (table, described, look, scratch.list(BOARD_RANGES)?)
        };
        surroundings::check_keys(look.hidden_code as usize)?;
        // SAFETY: the results are dropped before the scratch is released, and the caller guarantees
        // that no other thread runs.
        let (changes, contents, spared) = unsafe {
            let changes = match request.track.as_ref().filter(|track| track.marks) {
                Some(track) => Changes::take(scratch, look.held.as_slice(), track)?,
                None => Changes::none(scratch)?,
            };
            (changes, Contents::take(scratch, &table, &look)?, Spared::none(scratch)?)
        };
        let base = changes.base;
        let known = track.map_or(&[][..], |track| track.tracker.carried.of(base));
        let mut engine = Engine {
            carried: Carried { known, notes: notes.unwrap_or(Notes::NONE) },
            trusts: request.track.as_ref().is_some_and(|t| t.tracker.is_whole_since(t.base)),
            spared,
            request,
            table,
            described,
            state,
            look,
            contents,
            changes,
            cuts,
            lifted,
            unwiped: false,
            within_vdso: threads.is_within_vdso(),
            demand,
            taken_unix_ns: sys::clock_ns(0),
            pid: sys::getpid() as u32,
            tid: sys::gettid() as u64,
        };
        // SAFETY: the caller guarantees that no other thread runs, and the scratch outlives the
        // engine.
        let written = unsafe { engine.take_image(scratch) };
        let shared_bytes = engine.contents.bytes;
        // SAFETY: the image was written or its child has copies of its own, so nothing uses these
        // any more.
        unsafe {
            engine.contents.release();
        }
        let (child_pid, image_bytes) = written?;
        if let Some(track) = &request.track {
            let whole = child_pid > 0 && engine.lifted.as_slice().is_empty() && !engine.unwiped;
            track.tracker.note_whole(if whole { track.image } else { 0 });
        }
        if let Some(track) = request.track.as_ref().filter(|track| track.marks) {
            track.tracker.settle(engine.changes.marked.as_slice(), track.image);
        }
        let pause_ns = sys::clock_ns(1).saturating_sub(started_ns);
        if let (Mode::Sync, Some(written)) = (request.mode, request.written) {
            written(pause_ns);
        }
        Ok(Outcome::Captured { child_pid, pause_ns, shared_bytes, image_bytes })
    }

    /// Has the image written. Returns the child's id or the length of the stream.
    ///
    /// # Safety
    /// As [`Engine::run`].
    unsafe fn take_image(&mut self, scratch: &mut Scratch) -> Result<(i32, u64), Refusal> {
        self.contents.ranges().try_for_each(|range| self.cuts.push(range))?;
        // SAFETY: the caller keeps the contract of `run`, which is that of both functions.
        unsafe {
            match self.request.mode {
                Mode::Sync => self.write_here(scratch).map(|bytes| (0, bytes)),
                Mode::Async => self.start_writer(scratch).map(|pid| (pid, 0)),
            }
        }
    }

    /// Writes the image while the process waits.
    ///
    /// # Safety
    /// As [`Engine::run`].
    unsafe fn write_here(&mut self, scratch: &mut Scratch) -> Result<u64, Refusal> {
        // SAFETY: the stack is only used within this function, before the scratch is released.
        let stack = unsafe { helper::stack(scratch)? };
        let mut bytes = 0;
        let mut work = || {
            close_all_but(self.request.out_fd);
            // SAFETY: `lend` is false, so memory may change later.
            bytes = unsafe { self.write(scratch, false)? };
            Ok(())
        };
        // SAFETY: the caller guarantees that no other thread runs.
        unsafe { helper::run(stack, &mut work)? };
        Ok(bytes)
    }

    /// Starts the child that writes the image, and waits until it has begun, unless it is trusted.
    ///
    /// # Safety
    /// As [`Engine::run`].
    unsafe fn start_writer(&mut self, scratch: &mut Scratch) -> Result<i32, Refusal> {
        let failed = |errno| Refusal::Kernel { step: "sharing a page with the writer", errno };
        let at = sys::map_anonymous(size_of::<Board>(), sys::MAP_SHARED).map_err(failed)?;
        let len = size_of::<Board>().next_multiple_of(sys::PAGE) as u64;
        self.cuts.push((at as u64, at as u64 + len))?;
        let board = at as *mut Board;
        // SAFETY: the board is a new zero-filled mapping, and only this function has its address.
        let started = unsafe {
            if self.trusts {
                self.spared.spare(self.changes.unchanged());
                let started = self.clone_once(scratch, board);
                self.spared.end();
                started
            } else {
                self.clone_until_whole(scratch, board)
            }
        };
        memory::give_back(self.lifted.as_slice());
        // SAFETY: the mapping was made above and is not used any more here. The child has its own.
        let _ = unsafe { sys::munmap(at, size_of::<Board>()) };
        started
    }

    /// Clones until a child has all memory, and returns its id.
    ///
    /// # Safety
    /// The board must be fresh.
    unsafe fn clone_until_whole(
        &mut self,
        scratch: &mut Scratch,
        board: *mut Board,
    ) -> Result<i32, Refusal> {
        for _ in 0..ATTEMPTS {
            // SAFETY: the caller passes a fresh board, and `lift` resets it after each attempt.
            if let Some(pid) = unsafe { self.clone_writer(scratch, board)? } {
                return Ok(pid);
            }
            // SAFETY: the child has written its verdict, after which it does not touch the board.
            let board = unsafe { &mut *board };
            self.lift(board)?;
        }
        Err(Refusal::Writer)
    }

    /// Lifts the advice that the child has named, and resets the board for the next child.
    fn lift(&mut self, board: &mut Board) -> Result<(), Refusal> {
        let count = board.missing.load(Ordering::Acquire) as usize;
        let named = &board.ranges[..count.min(BOARD_RANGES)];
        named.iter().try_for_each(|l| self.lifted.push(*l))?;
        memory::lift(named)?;
        self.unwiped |= named.iter().all(|l| l.advice != format::advice::DONT_FORK);
        board.verdict.store(PENDING, Ordering::Release);
        Ok(())
    }

    /// Makes one attempt. Returns the child's id, or `None` when memory is missing in it.
    ///
    /// # Safety
    /// The board must be fresh.
    unsafe fn clone_writer(
        &mut self,
        scratch: &mut Scratch,
        board: *mut Board,
    ) -> Result<Option<i32>, Refusal> {
        // SAFETY: the caller keeps this contract.
        let pid = unsafe { self.clone_once(scratch, board)? };
        // SAFETY: the board stays mapped until the caller returns; the verdict is only accessed as
        // an atomic.
        match unsafe { wait_for_verdict(&(*board).verdict, pid) } {
            STARTED => Ok(Some(pid)),
            MISSING => Ok(None),
            _ => Err(Refusal::Writer),
        }
    }

    /// Clones the child, which begins with the image by itself. Returns its id.
    ///
    /// # Safety
    /// The board must be fresh.
    unsafe fn clone_once(
        &mut self,
        scratch: &mut Scratch,
        board: *mut Board,
    ) -> Result<i32, Refusal> {
        // With CLONE_PARENT the child belongs to our parent: no SIGCHLD comes here, and no zombie
        // stays.
        let flags = sys::CLONE_PARENT | sys::SIGCHLD;
        // SAFETY: the child is a copy of the process, and uses the same stack addresses in its own
        // memory.
        let pid = unsafe { sys::call6(nr::CLONE, flags, 0, 0, 0, 0, 0) }.map_err(|errno| {
            Refusal::Kernel { step: "starting the image-writing process", errno }
        })?;
        if pid == 0 {
            // SAFETY: this is the child, and `exit` below ensures that it never returns from here.
            let code = unsafe { self.writer(scratch, board) };
            sys::exit(code);
        }
        Ok(pid as i32)
    }

    /// Runs in the child from its start on. Returns its exit code.
    ///
    /// # Safety
    /// Only in the child.
    unsafe fn writer(&mut self, scratch: &mut Scratch, board: *mut Board) -> i32 {
        // First close the rank's sockets: they must not outlive the rank.
        close_all_but(self.request.out_fd);
        self.run_as_others();
        // SAFETY: the parent accesses only the verdict until that is set, and this process has the
        // board mapped.
        let board = unsafe { &mut *board };
        // SAFETY: the child never releases its scratch.
        let verdict = unsafe { self.find_missing(scratch, board) }.unwrap_or(FAILED);
        set_verdict(&board.verdict, verdict);
        if verdict != STARTED {
            return writer_exit::TRY_AGAIN;
        }
        // SAFETY: this is the only thread of the child and it writes to no captured memory any
        // more, so memory may be lent to the pipe.
        match unsafe { self.write(scratch, true) } {
            Ok(_) => {
                sys::close(self.request.out_fd);
                // SAFETY: the child never releases its scratch.
                let _ = unsafe { self.mark_meanwhile(scratch) };
                writer_exit::DONE
            }
            Err(Refusal::Output { errno: sys::EPIPE }) => writer_exit::READER_GONE,
            Err(_) => writer_exit::FAILED,
        }
    }

    /// Marks new memory of the process while that computes. What cannot be marked now is marked
    /// when the process stands still for the next image.
    ///
    /// # Safety
    /// Only in the child.
    unsafe fn mark_meanwhile(&mut self, scratch: &mut Scratch) -> Result<(), Refusal> {
        let unmarked = self.changes.unmarked.as_slice();
        if unmarked.is_empty() {
            return Ok(());
        }
        let path = proc::PathBuf::new(b"/proc/", self.tid, b"/pagemap");
        // SAFETY: the child never releases its scratch.
        let mut scan = unsafe { Scan::of(scratch, path.as_c())? };
        let failed = |errno| Refusal::Kernel { step: "tracking new memory", errno };
        memory::mark_meanwhile(&mut scan, unmarked).map_err(failed)
    }

    /// Gives up a real-time priority of the process, which is not meant for writing its image.
    fn run_as_others(&self) {
        const SCHED_OTHER: usize = 0;
        let policy = self.state.context.sched_attr[0] >> 32;
        if matches!(policy, 1 | 2) {
            let parameters = 0u32;
            let at = &raw const parameters as usize;
            // SAFETY: the kernel reads struct sched_param, one number, from a local variable.
            let _ = unsafe { sys::call3(nr::SCHED_SETSCHEDULER, 0, SCHED_OTHER, at) };
        }
    }

    /// Puts on the board the memory that advice keeps from this child. Returns the verdict.
    ///
    /// # Safety
    /// Only in the child.
    unsafe fn find_missing(
        &self,
        scratch: &mut Scratch,
        board: &mut Board,
    ) -> Result<u32, Refusal> {
        // SAFETY: the child never releases its scratch.
        let (buf, mut here, mut ranges) = unsafe {
            (scratch.take::<u8>(65536)?, scratch.list(1 << 17)?, scratch.list(BOARD_RANGES)?)
        };
        self.look.missing_here(buf, &mut here, &mut ranges)?;
        let mut advice = format::advice::DONT_FORK;
        let mut verdict = if ranges.as_slice().is_empty() { STARTED } else { MISSING };
        if verdict == STARTED && !self.unwiped {
            // SAFETY: the child never releases its scratch.
            let mut scan = unsafe { Scan::new(scratch)? };
            let looked = self.look.wiped_here(buf, &mut scan, &mut ranges);
            scan.close();
            if looked? {
                (advice, verdict) = (format::advice::WIPE_ON_FORK, MISSING);
            }
        }
        let found = ranges.as_slice();
        for (place, &range) in board.ranges.iter_mut().zip(found) {
            *place = Lifted { range, advice };
        }
        board.missing.store(found.len() as u32, Ordering::Release);
        Ok(verdict)
    }

    /// Writes the whole stream and returns its length in bytes.
    ///
    /// # Safety
    /// `lend` only if no memory of this process changes any more.
    unsafe fn write(&mut self, scratch: &mut Scratch, lend: bool) -> Result<u64, Refusal> {
        let mut fp = fingerprint::of_this_node();
        // SAFETY: all results are dropped at the end of this block, before the scratch is released.
        // The caller guarantees that `lend` is only set if no memory changes any more.
        unsafe {
            let cuts = self.cuts.as_slice();
            let lifted = self.lifted.as_slice();
            let policy = (self.state.context.memory_policy, self.state.context.memory_nodes);
            let contents = &self.contents;
            let stay = self.request.names_stay;
            let mut space = AddressSpace::new(scratch, cuts, lifted, contents, stay, policy)?;
            space.spare(self.spared.ranges())?;
            let taken = space.take(scratch, (&self.look, &self.contents), &mut fp);
            if self.request.self_contained {
                let entries = self.table.entries.as_slice();
                space.carry(|file| entries.iter().any(|entry| entry.record.identity == *file));
            }
            let written = taken.and_then(|()| {
                let mut scan = Scan::new(scratch)?;
                let mut out = Output::new(scratch, self.request.out_fd, lend)?;
                let written = self.write_records(scratch, &mut space, &mut scan, &mut out, fp);
                scan.close();
                written?;
                Ok(out.bytes)
            });
            space.release();
            written
        }
    }

    /// # Safety
    /// As [`Engine::write`].
    unsafe fn write_records(
        &mut self,
        scratch: &mut Scratch,
        space: &mut AddressSpace,
        scan: &mut Scan,
        out: &mut Output,
        fp: format::Fingerprint,
    ) -> Result<(), Refusal> {
        let output = |errno| Refusal::Output { errno };
        let scanned = |errno| Refusal::Kernel { step: "finding the pages in use", errno };
        space.mark_content(scan).map_err(scanned)?;
        self.link_shared_files(space);
        let header = self.header(fp);
        // SAFETY: the scratch is released only after the stream was written.
        unsafe {
            let header = output::keep(scratch, &header)?;
            out.describe(Kind::Header, 0, &[header, self.request.meta]).map_err(output)?;
        }
        if self.changes.base != 0 {
            out.base(self.changes.base).map_err(output)?;
        }
        let context = bytes_of(&*self.state.context);
        let parts = [context, self.state.pending.as_flattened(), self.state.cwd];
        out.describe(Kind::Context, 0, &parts).map_err(output)?;
        for state in self.described.as_slice().iter().chain(&self.demand) {
            out.named(state.header, state.payload).map_err(output)?;
        }
        let mut regions = space.regions.as_slice().iter();
        let vdso = regions.find(|region| region.record.flags == map_flag::VDSO);
        if let (Some(vdso), false) = (vdso, self.within_vdso) {
            // SAFETY: the kernel has this mapping at the same place in the process and in its
            // child. The scratch is released only after the stream was written.
            if let Some(state) = unsafe { vdso::describe(scratch, &vdso.record)? } {
                out.named(state.header, state.payload).map_err(output)?;
            }
        }
        for object in space.objects.as_slice() {
            out.describe(Kind::File, FILE_OBJECT, &[bytes_of(&object.record), object.path])
                .map_err(output)?;
        }
        for entry in self.table.entries.as_slice() {
            let locks = bytes_of_all(self.table.locks_of(entry));
            out.describe(
                Kind::File,
                FILE_DESCRIPTOR,
                &[bytes_of(&entry.record), locks, entry.path],
            )
            .map_err(output)?;
        }
        for region in space.regions.as_slice() {
            out.describe(Kind::Mapping, 0, &[bytes_of(&region.record)]).map_err(output)?;
        }
        // SAFETY: `space` was read just before, and no other thread runs that could change the
        // mappings.
        unsafe {
            memory::write_files(self.contents.files.as_slice(), scan, out).map_err(output)?;
            let memory = (space.regions.as_slice(), space.objects.as_slice());
            memory::write_pages(memory, &self.changes, &mut self.carried, scan, out)
                .map_err(output)?;
            memory::write_guards(space.regions.as_slice(), scan, out).map_err(output)?;
            self.carried.notes.end();
            let room = scratch.take::<u64>(1)?;
            out.finish(&mut room[0]).map_err(output)
        }
    }

    fn header(&self, fingerprint: format::Fingerprint) -> Header {
        let r = self.request;
        Header {
            magic: MAGIC,
            version: VERSION,
            rank: r.rank,
            incarnation: r.incarnation,
            meta_len: r.meta.len() as u32,
            clock: r.clock,
            rsn: r.rsn,
            taken_unix_ns: self.taken_unix_ns,
            pid: self.pid,
            names_stay: if self.request.names_stay { NAMES_STAY | MAPS_FILES } else { 0 },
            boot_id: fingerprint::boot_id(),
            fingerprint,
        }
    }

    /// Lets a descriptor of a file that comes back as a new file refer to that new file.
    fn link_shared_files(&mut self, space: &AddressSpace) {
        for entry in self.table.entries.as_mut_slice() {
            let found = space.objects.as_slice().iter().position(|o| {
                o.record.kind == object_kind::SHM_FILE && o.record.identity == entry.record.identity
            });
            if let (fd_kind::PATH, Some(index)) = (entry.record.kind, found) {
                entry.record.kind = fd_kind::OBJECT;
                entry.record.arg = index as u32;
                entry.record.path_len = 0;
                entry.path = &[];
            }
        }
    }
}

fn check_request(request: &Request) -> Result<(), Refusal> {
    if request.meta.len() > META_MAX {
        return Err(Refusal::Request("meta is longer than 4096 bytes"));
    }
    if sys::fcntl(request.out_fd, sys::F_GETFD, 0).is_err() {
        return Err(Refusal::Request("out_fd is not open"));
    }
    Ok(())
}

/// Closes all descriptors except `fd`, in a child with a descriptor table of its own.
fn close_all_but(fd: i32) {
    let fd = fd as usize;
    // SAFETY: the arguments are numbers. The descriptors are those of the child's own table.
    unsafe {
        if fd > 0 {
            let _ = sys::call3(nr::CLOSE_RANGE, 0, fd - 1, 0);
        }
        let _ = sys::call3(nr::CLOSE_RANGE, fd + 1, u32::MAX as usize, 0);
    }
}

/// Waits for the child's verdict. Kills the child if it gives none in time.
fn wait_for_verdict(word: &AtomicU32, child: i32) -> u32 {
    const FUTEX_WAIT: usize = 0;
    let deadline = sys::clock_ns(1) + START_LIMIT_NS;
    loop {
        let verdict = word.load(Ordering::Acquire);
        if verdict != PENDING {
            return verdict;
        }
        // SAFETY: signal 0 only checks whether the process exists.
        let there = unsafe { sys::call3(nr::KILL, child as usize, 0, 0) }.is_ok();
        if !there || sys::clock_ns(1) > deadline {
            // SAFETY: `child` is the child just cloned, which has not begun to write.
            let _ = unsafe { sys::call3(nr::KILL, child as usize, sys::SIGKILL as usize, 0) };
            return word.load(Ordering::Acquire);
        }
        let timeout = [0i64, 50_000_000];
        // SAFETY: the word is aligned, in shared memory that is mapped; the timeout outlives the
        // call.
        let _ = unsafe {
            sys::call6(
                nr::FUTEX,
                word.as_ptr() as usize,
                FUTEX_WAIT,
                PENDING as usize,
                timeout.as_ptr() as usize,
                0,
                0,
            )
        };
    }
}

fn set_verdict(word: &AtomicU32, verdict: u32) {
    const FUTEX_WAKE: usize = 1;
    word.store(verdict, Ordering::Release);
    // SAFETY: the word is aligned, in shared memory that is mapped.
    let _ = unsafe { sys::call6(nr::FUTEX, word.as_ptr() as usize, FUTEX_WAKE, 1, 0, 0, 0) };
}
