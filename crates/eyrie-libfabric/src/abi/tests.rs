//! Compares `abi.rs` with libfabric's own headers: a C program that is generated here prints how
//! the compiler sees them. The headers are Debian's (scripts/libfabric-headers.sh).

use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Offset and size in bytes, by "structure.field".
type Fields = BTreeMap<String, (usize, usize)>;

/// What `abi.rs` defines, and what the C program is asked for.
#[derive(Default)]
struct Interface {
    /// In bytes.
    sizes: BTreeMap<&'static str, usize>,
    fields: Fields,
    numbers: BTreeMap<&'static str, u64>,
}

/// Size in bytes of the field that `field` leads to. The pointer is never read.
const fn size_behind<T, F>(_field: fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

macro_rules! structures {
    ($interface:ident: $($name:ident { $($field:ident),* $(,)? })*) => {$(
        $interface.sizes.insert(stringify!($name), size_of::<$name>());
        $(
            // SAFETY: the closure is never called; only its type gives the size of the field.
            let size = size_behind(|s: *const $name| unsafe { &raw const (*s).$field });
            let offset = std::mem::offset_of!($name, $field);
            // Names that are Rust keywords have an underscore here.
            let field = stringify!($field).trim_end_matches('_');
            $interface.fields.insert(format!("{}.{field}", stringify!($name)), (offset, size));
        )*
    )*};
}

macro_rules! numbers {
    ($interface:ident: $($name:ident),* $(,)?) => {
        $($interface.numbers.insert(stringify!($name), $name as u64);)*
    };
}

fn ours() -> Interface {
    let mut interface = Interface::default();
    structures! { interface:
        fid { fclass, context, ops }
        fi_ops { size, close, bind, control, ops_open, tostr, ops_set }
        fi_tx_attr {
            caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit, rma_iov_limit,
            tclass,
        }
        fi_rx_attr { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit }
        fi_ep_attr {
            type_, protocol, protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size,
            max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt,
            auth_key_size, auth_key,
        }
        fi_domain_attr {
            domain, name, threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode,
            mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx,
            max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode, auth_key,
            auth_key_size, max_err_data, mr_cnt, tclass,
        }
        fi_fabric_attr { fabric, name, prov_name, prov_version, api_version }
        fi_info {
            next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle,
            tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic,
        }
        fi_provider { version, fi_version, context, name, getinfo, fabric, cleanup }
        fi_ops_fabric { size, domain, passive_ep, eq_open, wait_open, trywait, domain2 }
        fid_fabric { fid, ops, api_version }
        fi_ops_domain {
            size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx,
            query_atomic, query_collective, endpoint2,
        }
        fi_ops_mr { size, reg, regv, regattr }
        fid_domain { fid, ops, mr }
        fi_mr_attr { mr_iov, iov_count, access, offset, requested_key, context }
        fid_mr { fid, mem_desc, key }
        fi_av_attr { type_, rx_ctx_bits, count, ep_per_node, name, map_addr, flags }
        fi_ops_av { size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set }
        fid_av { fid, ops }
        fi_cq_attr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
        fi_cq_tagged_entry { op_context, flags, len, buf, data, tag }
        fi_cq_err_entry {
            op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size,
        }
        fi_ops_cq { size, read, readfrom, readerr, sread, sreadfrom, signal, strerror }
        fid_cq { fid, ops }
        fi_ops_cntr { size, read, readerr, add, set, wait, adderr, seterr }
        fid_cntr { fid, ops }
        fid_eq { fid, ops }
        fi_ops_eq { size, read, readerr, write, sread, strerror }
        fi_msg { msg_iov, desc, iov_count, addr, context, data }
        fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
        fi_ops_ep { size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left }
        fi_ops_cm { size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join }
        fi_ops_msg { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
        fi_ops_tagged { size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata }
        fi_rma_iov { addr, len, key }
        fi_msg_rma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
        fi_ops_rma {
            size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata,
        }
        fi_ioc { addr, count }
        fi_rma_ioc { addr, count, key }
        fi_msg_atomic {
            msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op, context, data,
        }
        fi_atomic_attr { count, size }
        fi_ops_atomic {
            size, write, writev, writemsg, inject, readwrite, readwritev, readwritemsg, compwrite,
            compwritev, compwritemsg, writevalid, readwritevalid, compwritevalid,
        }
        fid_ep { fid, ops, cm, msg, rma, tagged, atomic, collective }
    }
    numbers! { interface:
        FI_MSG, FI_RMA, FI_TAGGED, FI_ATOMIC, FI_READ, FI_WRITE, FI_RECV, FI_SEND, FI_REMOTE_READ,
        FI_REMOTE_WRITE, FI_MULTI_RECV, FI_REMOTE_CQ_DATA, FI_PEEK, FI_COMPLETION, FI_LOCAL_COMM,
        FI_REMOTE_COMM, FI_DIRECTED_RECV, FI_CLAIM, FI_DISCARD, FI_SELECTIVE_COMPLETION,
        FI_COMPARE_ATOMIC, FI_SOURCE, FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_MR_ALLOCATED, FI_MR_PROV_KEY,
        FI_WAIT_UNSPEC, FI_ADDR_UNSPEC, FI_FORMAT_UNSPEC, FI_EP_UNSPEC, FI_EP_RDM, FI_AV_TABLE,
        FI_PROGRESS_MANUAL, FI_THREAD_DOMAIN, FI_RM_ENABLED, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG,
        FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV,
        FI_CLASS_FABRIC, FI_CLASS_DOMAIN, FI_CLASS_EP, FI_CLASS_AV, FI_CLASS_MR, FI_CLASS_EQ,
        FI_CLASS_CQ, FI_CLASS_CNTR, FI_ENABLE, FI_EAVAIL, FI_ETRUNC,
    }
    interface
}

/// What is in `abi.rs` but not in the headers of every version.
const NOT_IN_HEADERS: [&str; 2] = ["fi_provider.padding", "fi_ops_av.later"];
/// Sums of several of libfabric's numbers.
const SUMS: [&str; 3] = ["FI_ORDER_ALL", "FI_ORDER_RMA_ALL", "FI_ORDER_ATOMIC_ALL"];

#[test]
fn every_structure_field_and_number_of_this_file_is_compared() {
    let mut fields = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    let mut structure = "";
    for line in include_str!("../abi.rs").lines() {
        if let Some(rest) = line.strip_prefix("pub struct ") {
            structure = rest.trim_end_matches(" {");
        } else if let Some((field, _)) =
            line.strip_prefix("    pub ").and_then(|l| l.split_once(':'))
        {
            fields.insert(format!("{structure}.{}", field.trim_end_matches('_')));
        } else if let Some((name, _)) =
            line.strip_prefix("pub const FI_").and_then(|l| l.split_once(':'))
        {
            numbers.insert(format!("FI_{name}"));
        }
    }
    let ours = ours();
    let mut compared: BTreeSet<String> = ours.fields.into_keys().collect();
    compared.extend(NOT_IN_HEADERS.map(String::from));
    assert_eq!(fields, compared);
    let mut compared: BTreeSet<String> = ours.numbers.into_keys().map(String::from).collect();
    compared.extend(SUMS.map(String::from));
    assert_eq!(numbers, compared);
}

fn program(interface: &Interface) -> String {
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    let headers =
        "fabric.h fi_atomic.h fi_cm.h fi_domain.h fi_endpoint.h fi_eq.h fi_errno.h fi_rma.h \
                   fi_tagged.h providers/fi_prov.h";
    for header in headers.split_whitespace() {
        text += &format!("#include <rdma/{header}>\n");
    }
    text += "int main(void) {\n";
    for name in interface.sizes.keys() {
        text += &format!("printf(\"size {name} %zu\\n\", sizeof(struct {name}));\n");
    }
    for name in interface.fields.keys() {
        let (s, f) = name.split_once('.').unwrap();
        text += &format!(
            "printf(\"field {name} %zu %zu\\n\", offsetof(struct {s}, {f}), \
             sizeof(((struct {s} *)0)->{f}));\n"
        );
    }
    for name in interface.numbers.keys() {
        text += &format!("printf(\"number {name} %llu\\n\", (unsigned long long)({name}));\n");
    }
    text + "return 0;\n}\n"
}

/// What the program prints about the headers in `include`: a line for each structure, field and
/// number.
fn printed_for(include: &Path) -> Vec<String> {
    assert!(include.is_dir(), "{} is missing: run scripts/setup.sh", include.display());
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    let binary = folder.path().join("layout");
    fs::write(&source, program(&ours())).unwrap();
    let compiler = std::env::var("CC").unwrap_or("cc".into());
    let mut command = Command::new(compiler);
    command.arg("-I").arg(include).arg("-o").args([&binary, &source]);
    let compiled = command.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&binary).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

/// Compares with the headers in `include`. The structures in `other_size` may be longer or shorter
/// there; all others must have the same size.
fn compare(include: &Path, other_size: &[&str]) {
    let ours = ours();
    let mut wrong = Vec::new();
    let mut lines = 0;
    for line in printed_for(include) {
        let words: Vec<&str> = line.split(' ').collect();
        let theirs: Vec<u64> = words[2..].iter().map(|w| w.parse().unwrap()).collect();
        let here = match words[0] {
            "size" if other_size.contains(&words[1]) => theirs.clone(),
            "size" => vec![ours.sizes[words[1]] as u64],
            "field" => {
                let (offset, size) = ours.fields[words[1]];
                vec![offset as u64, size as u64]
            }
            _ => vec![ours.numbers[words[1]]],
        };
        if here != theirs {
            wrong.push(format!("{line}, and {here:?} in abi.rs"));
        }
        lines += 1;
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(lines, ours.sizes.len() + ours.fields.len() + ours.numbers.len());
}

fn headers(version: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("build/libfabric-headers").join(version).join("usr/include")
}

/// Structures that the provider returns are longer than libfabric's: tables of functions have their
/// size in a field, and others have padding. Of structures that libfabric passes to the provider,
/// only the first fields are defined here.
const OTHER_SIZE: [&str; 3] = ["fi_ops_av", "fi_provider", "fi_mr_attr"];

#[test]
fn structures_are_those_of_libfabric_1_17() {
    compare(&headers("1.17.0"), &OTHER_SIZE);
}

/// Newer versions have added fields at the end. What the provider returns is padded (`info.rs`).
#[test]
fn structures_begin_like_those_of_libfabric_2_1() {
    compare(&headers("2.1.0"), &[&OTHER_SIZE[..], &["fi_domain_attr", "fi_cq_err_entry"]].concat());
}
