//! Reads an image stream and becomes the process it describes. No libc, no allocation, no thread;
//! linked into a stretch of addresses that belongs to it alone.
//! It must never let a process run whose image was not read to its very end.
#![no_std]
#![no_main]

mod address_space;
mod become_it;
mod carried;
mod descriptors;
mod fail;
mod files;
mod gone;
mod image;
mod link;
mod locks;
mod mapping;
mod memory_functions;
mod place;
mod prepared;
mod watched;
mod within;

use core::arch::global_asm;
use eyrie_image_format::{exit, SLOTS_MAX};
use eyrie_image_kernel::{maps, sys};

// The kernel starts us with the argument count at the stack pointer. That stack lies where the
// restored process has its own, so everything runs on one in our own stretch.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "movabs rax, offset eyrie_restorer_stack_top",
    "mov rsp, rax",
    "movabs rax, offset eyrie_restorer_main",
    "call rax",
    "ud2",
    ".section .bss.eyrie_restorer_stack,\"aw\",@nobits",
    ".balign 64",
    ".skip 262144",
    "eyrie_restorer_stack_top:",
    ".text",
);

/// # Safety
/// `start` must be the stack pointer at entry.
#[no_mangle]
unsafe extern "C" fn eyrie_restorer_main(start: *const usize) -> ! {
    sys::block_all_signals();
    // SAFETY: `start` is the stack pointer at entry, where the kernel put the arguments.
    let (image_fd, slots) = unsafe { arguments(start) };
    restore(image_fd, &slots)
}

fn restore(image_fd: i32, slots: &[i32; SLOTS_MAX]) -> ! {
    let parent = become_it::parent();
    become_it::lift_limits();
    let mut input = image::Input::new(image_fd);
    let mut arena = image::Arena::new();
    let node = place::Here::look();
    let mut prepared = prepared::Prepared::new(&mut arena);
    prepared.read_all(&node, &mut input, &mut arena);
    let mut image = image::read_description(&mut input, &mut arena);
    node.check(&image);
    carried::settle(&mut image, carried::Order::Last, &mut arena);
    let mut table = descriptors::Table::open(&image, &mut input, slots);
    let mut memory = address_space::Memory::build(&image, &table, &node, &mut prepared, &mut arena);
    memory.read_pages(&image, &table, &mut prepared, &mut input);
    // The stream is whole. Nothing outside this process may change before this line.
    table.settle_names(&image);
    memory.map_named(&image, &table);
    table.put_in_place(&image);
    locks::take_all(&image);
    memory.commit(&image, &table, &node);
    table.cut_and_seek(&image);
    within::go_on(&image);
    become_it::become_it(&image, &table, parent)
}

/// The descriptors given on the command line.
///
/// # Safety
/// `start` must point to the argument count the kernel left.
unsafe fn arguments(start: *const usize) -> (i32, [i32; SLOTS_MAX]) {
    let mut slots = [-1; SLOTS_MAX];
    // SAFETY: argc, then as many pointers to C strings.
    let argc = unsafe { *start };
    let argument = |i: usize| -> Option<i32> {
        // SAFETY: the index is below argc, so the kernel put a C string there.
        let text = unsafe {
            let at = *start.add(1 + i) as *const u8;
            let mut len = 0;
            while *at.add(len) != 0 {
                len += 1;
            }
            core::slice::from_raw_parts(at, len)
        };
        match text {
            b"-1" => Some(-1),
            _ => match maps::decimal(text) {
                Some((n, [])) if n < 1 << 30 => Some(n as i32),
                _ => None,
            },
        }
    };
    let usage = || -> ! {
        fail::now(exit::USAGE, format_args!("usage: eyrie-restorer IMAGE_FD [SLOT_FD...]"))
    };
    if !(2..=SLOTS_MAX + 2).contains(&argc) {
        usage();
    }
    let image_fd = argument(1).filter(|fd| *fd >= 0).unwrap_or_else(|| usage());
    for (i, slot) in slots.iter_mut().enumerate().take(argc - 2) {
        *slot = argument(i + 2).unwrap_or_else(|| usage());
    }
    (image_fd, slots)
}
