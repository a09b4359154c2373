//! The first observations of a rank that starts again from its beginning. The agent has put them
//! into the channel, in front of all messages.

use libc::c_int;

/// `eyrie_wire::agent::BEGINNING`, with which a test compares it.
pub const BEGINNING: u8 = 5;

/// The file and its length, if there is one. It is left in the channel for the provider, which
/// ignores it.
pub fn first_observations(channel: c_int) -> Option<(c_int, usize)> {
    let mut kind = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut kind).cast(), iov_len: 1 };
    let mut control = [0u64; 8];
    // SAFETY: the structures live through the calls, and are as long as said; a control message
    // that the kernel has written is read where it lies.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&mut iov, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        if libc::recvmsg(channel, &mut message, flags) < 1 {
            return None;
        }
        let mut files = [-1; 8];
        let mut count = 0;
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                for n in 0..bytes / size_of::<c_int>() {
                    files[count] = data.add(n).read_unaligned();
                    count += 1;
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        let mut st: libc::stat = std::mem::zeroed();
        if kind == BEGINNING && count == 1 && libc::fstat(files[0], &mut st) == 0 && st.st_size > 0
        {
            return Some((files[0], st.st_size as usize));
        }
        for fd in &files[..count] {
            libc::close(*fd);
        }
        None
    }
}
