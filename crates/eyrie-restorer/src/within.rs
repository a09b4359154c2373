//! Descriptors that are no files: pipes and socket pairs within the process, with the bytes that
//! waited in them, and descriptors that wait for events. Nothing here touches anything outside the
//! process.

use crate::fail;
use crate::image::{DescriptorEntry, Image};
use crate::link::Link;
use crate::watched::watched_paths;
use core::mem::size_of;
use eyrie_image_format::*;
use eyrie_image_kernel::sys::{self, nr};

/// Makes a pipe with these bytes in it. Returns the end that the image describes, then the other.
pub fn pipe(r: &Descriptor, content: &[u8]) -> Result<[i32; 2], i32> {
    let mut ends = [-1i32; 2];
    let flags = (sys::O_CLOEXEC | sys::O_NONBLOCK) as usize;
    // SAFETY: the kernel writes two descriptors, for which `ends` has room.
    unsafe { sys::call3(nr::PIPE2, ends.as_mut_ptr() as usize, flags, 0)? };
    let [read, write] = ends;
    // Where this size is not allowed here, the pipe keeps its default size.
    let _ = sys::fcntl(write, sys::F_SETPIPE_SZ, r.offset as usize);
    let mut done = 0;
    while done < content.len() {
        done += sys::write(write, &content[done..])?;
    }
    match r.open_flags & sys::O_ACCMODE {
        sys::O_RDONLY => Ok([read, write]),
        sys::O_WRONLY => Ok([write, read]),
        _ => {
            let both = another_end(read, r)?;
            sys::close(read);
            Ok([both, write])
        }
    }
}

/// Whether a descriptor is at the other end of a pipe.
pub fn is_other_end(r: &Descriptor, of: &Descriptor) -> bool {
    let access = |d: &Descriptor| d.open_flags & sys::O_ACCMODE;
    access(of) != sys::O_RDWR && access(r) == access(of) ^ sys::O_WRONLY
}

/// Opens an end of the pipe that `fd` is an end of, too.
pub fn another_end(fd: i32, r: &Descriptor) -> Result<i32, i32> {
    let access = r.open_flags & sys::O_ACCMODE;
    // It does not wait for the other end.
    let opened = Link::new(fd).open(access | sys::O_NONBLOCK | sys::O_CLOEXEC)?;
    as_it_was(opened, r)
}

/// Sets whether reads and writes block.
pub fn as_it_was(fd: i32, r: &Descriptor) -> Result<i32, i32> {
    sys::fcntl(fd, sys::F_SETFL, (r.open_flags & sys::O_NONBLOCK) as usize)?;
    Ok(fd)
}

/// Makes a socket pair; what waits at one end is sent from the other.
pub fn socket_pair(one: &DescriptorEntry, other: &DescriptorEntry) -> Result<[i32; 2], i32> {
    const AF_UNIX: usize = 1;
    let (Some((first, waits)), Some((second, waits_there))) =
        (take::<Socket>(one.content), take::<Socket>(other.content))
    else {
        return Err(sys::EINVAL);
    };
    let mut ends = [-1i32; 2];
    let kind = first.kind as usize | (sys::O_CLOEXEC | sys::O_NONBLOCK) as usize;
    // SAFETY: the kernel writes two descriptors, for which `ends` has room.
    unsafe { sys::call6(nr::SOCKETPAIR, AF_UNIX, kind, 0, ends.as_mut_ptr() as usize, 0, 0)? };
    send_all(ends[1], waits)?;
    send_all(ends[0], waits_there)?;
    for (fd, state, entry) in [(ends[0], first, one), (ends[1], second, other)] {
        set_room(fd, SO_SNDBUF, state.send_room);
        set_room(fd, SO_RCVBUF, state.receive_room);
        if (1..=3).contains(&state.shutdown) {
            // SAFETY: the call takes numbers only. 0 stops receiving, 1 sending, 2 both.
            let _ =
                unsafe { sys::call3(nr::SHUTDOWN, fd as usize, state.shutdown as usize - 1, 0) };
        }
        as_it_was(fd, &entry.record)?;
    }
    Ok(ends)
}

const SO_SNDBUF: usize = 7;
const SO_RCVBUF: usize = 8;

/// Sets the size of the buffer. The kernel doubles the number that it gets, and reports the double.
fn set_room(fd: i32, name: usize, told: u32) {
    const SOL_SOCKET: usize = 1;
    let value = told / 2;
    let at = &raw const value as usize;
    // SAFETY: the kernel reads one number, which is ours. A size that is not allowed stays as it
    // is.
    let _ = unsafe { sys::call6(nr::SETSOCKOPT, fd as usize, SOL_SOCKET, name, at, 4, 0) };
}

fn send_all(fd: i32, mut bytes: &[u8]) -> Result<(), i32> {
    // The size that every process may have: less than that waited here before.
    set_room(fd, SO_SNDBUF, 4 * CONTENT_MAX as u32);
    while !bytes.is_empty() {
        bytes = &bytes[sys::write(fd, bytes)?..];
    }
    Ok(())
}

/// Makes a descriptor that waits for events. It watches nothing yet.
pub fn waiter(entry: &DescriptorEntry) -> Result<i32, i32> {
    let r = &entry.record;
    let flags = (r.open_flags & sys::O_NONBLOCK | sys::O_CLOEXEC) as usize;
    // SAFETY: numbers, and a set of signals that is ours and that the kernel reads.
    let made = unsafe {
        match r.kind {
            fd_kind::EPOLL => sys::call3(nr::EPOLL_CREATE1, sys::O_CLOEXEC as usize, 0, 0),
            fd_kind::TIMER => {
                let (state, _) = take::<TimerState>(entry.content).ok_or(sys::EINVAL)?;
                sys::call3(nr::TIMERFD_CREATE, state.clock as usize, flags, 0)
            }
            fd_kind::INOTIFY => sys::call3(nr::INOTIFY_INIT1, flags, 0, 0),
            _ => {
                let set = &raw const r.size as usize;
                sys::call6(nr::SIGNALFD4, usize::MAX, set, 8, flags, 0, 0)
            }
        }
    };
    made.map(|fd| fd as i32)
}

/// All descriptors are in their places: epoll and inotify instances watch again, and timers run.
pub fn go_on(image: &Image) {
    for entry in image.descriptors {
        let went = match entry.record.kind {
            fd_kind::EPOLL => watch_all(entry),
            fd_kind::TIMER => start(entry),
            fd_kind::INOTIFY => watch_paths(entry),
            _ => Ok(()),
        };
        if let Err(errno) = went {
            fail::kernel("having a descriptor wait for events again", errno);
        }
    }
}

fn watch_all(entry: &DescriptorEntry) -> Result<(), i32> {
    const EPOLL_CTL_ADD: usize = 1;
    let all = entry.content.chunks_exact(size_of::<Watch>());
    for Watch { fd, events, data } in all.filter_map(|bytes| Some(take::<Watch>(bytes)?.0)) {
        // struct epoll_event is packed.
        let event = [events, data as u32, (data >> 32) as u32];
        let epoll = entry.record.fd as usize;
        let at = event.as_ptr() as usize;
        // SAFETY: the kernel reads one struct epoll_event, which is ours.
        unsafe { sys::call6(nr::EPOLL_CTL, epoll, EPOLL_CTL_ADD, fd as usize, at, 0, 0)? };
    }
    Ok(())
}

/// Watches the same paths by the same numbers. The kernel counts watches up. So each lower number
/// is taken and given back. The kernel reports that by an event, which the process must not see.
fn watch_paths(entry: &DescriptorEntry) -> Result<(), i32> {
    let fd = entry.record.fd as usize;
    let mut last = 0;
    let next = |after: u32| {
        let all = watched_paths(entry.content).flatten();
        all.filter(|(watched, _)| watched.watch > after).min_by_key(|(watched, _)| watched.watch)
    };
    while let Some((WatchedPath { watch, events, .. }, path)) = next(last) {
        loop {
            // SAFETY: a path with its NUL, and numbers.
            let given = unsafe {
                sys::call3(nr::INOTIFY_ADD_WATCH, fd, path.as_ptr() as usize, events as usize)?
            };
            if given == watch as usize {
                break;
            }
            // SAFETY: the call takes numbers only, so the kernel touches no memory of ours.
            unsafe { sys::call3(nr::INOTIFY_RM_WATCH, fd, given, 0)? };
            if given > watch as usize {
                return Err(sys::EINVAL);
            }
            drain(entry.record.fd)?;
        }
        last = watch;
    }
    drain(entry.record.fd)
}

/// Removes the events from an inotify instance that its making has caused.
fn drain(fd: i32) -> Result<(), i32> {
    const FIONREAD: usize = 0x541b;
    let mut room = [0u8; 8192];
    loop {
        let mut waits = 0u32;
        // SAFETY: the kernel writes one word, which is ours.
        unsafe { sys::call3(nr::IOCTL, fd as usize, FIONREAD, &raw mut waits as usize)? };
        if waits == 0 {
            return Ok(());
        }
        sys::read(fd, &mut room)?;
    }
}

fn start(entry: &DescriptorEntry) -> Result<(), i32> {
    const TFD_IOC_SET_TICKS: usize = 0x4008_5400;
    let (state, _) = take::<TimerState>(entry.content).ok_or(sys::EINVAL)?;
    let fd = entry.record.fd as usize;
    let mut times = [state.interval[0], state.interval[1], state.value[0], state.value[1]];
    // SAFETY: the kernel reads struct itimerspec, and a number.
    unsafe {
        sys::call6(nr::TIMERFD_SETTIME, fd, 0, times.as_ptr() as usize, 0, 0, 0)?;
        let ticks = &raw const state.ticks as usize;
        if state.ticks > 0 && sys::call3(nr::IOCTL, fd, TFD_IOC_SET_TICKS, ticks).is_err() {
            // An older kernel refuses this. Then the timer expires at once, and later as before.
            times[2..].copy_from_slice(&[0, 1]);
            sys::call6(nr::TIMERFD_SETTIME, fd, 0, times.as_ptr() as usize, 0, 0, 0)?;
        }
    }
    Ok(())
}
