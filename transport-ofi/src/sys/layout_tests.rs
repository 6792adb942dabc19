//! Structures and constants against the headers.

use super::*;
use std::mem::{offset_of, size_of};
use std::process::Command;

/// What C calls it, what it is here, and what it was in Debian's libfabric-dev 1.17.0 on x86-64.
type Line = (&'static str, u64, u64);

macro_rules! size {
    ($ours:ty, $theirs:literal, $expected:literal) => {
        (concat!("sizeof(struct ", $theirs, ")"), size_of::<$ours>() as u64, $expected)
    };
}

macro_rules! place {
    ($ours:ty, $field:ident, $theirs:literal, $expected:literal) => {
        place!($ours, $field, $theirs, $field, $expected)
    };
    ($ours:ty, $field:ident, $theirs:literal, $name:ident, $expected:literal) => {
        (
            concat!("offsetof(struct ", $theirs, ", ", stringify!($name), ")"),
            offset_of!($ours, $field) as u64,
            $expected,
        )
    };
}

/// Whole structures by their sizes, beginnings of structures by the places of what is used of them.
fn lines() -> Vec<Line> {
    [attributes(), objects(), queues(), atomics(), constants()].concat()
}

fn attributes() -> Vec<Line> {
    vec![
        size!(Info, "fi_info", 120),
        place!(Info, caps, "fi_info", 8),
        place!(Info, mode, "fi_info", 16),
        place!(Info, addr_format, "fi_info", 24),
        place!(Info, tx_attr, "fi_info", 72),
        place!(Info, ep_attr, "fi_info", 88),
        place!(Info, domain_attr, "fi_info", 96),
        place!(Info, fabric_attr, "fi_info", 104),
        place!(TxAttr, inject_size, "fi_tx_attr", 40),
        place!(EpAttr, kind, "fi_ep_attr", type, 0),
        place!(EpAttr, max_msg_size, "fi_ep_attr", 16),
        place!(DomainAttr, name, "fi_domain_attr", 8),
        place!(DomainAttr, threading, "fi_domain_attr", 16),
        place!(DomainAttr, data_progress, "fi_domain_attr", 24),
        place!(DomainAttr, resource_mgmt, "fi_domain_attr", 28),
        place!(DomainAttr, mr_mode, "fi_domain_attr", 36),
        place!(DomainAttr, mr_key_size, "fi_domain_attr", 40),
        place!(FabricAttr, name, "fi_fabric_attr", 8),
        place!(FabricAttr, prov_name, "fi_fabric_attr", 16),
    ]
}

fn objects() -> Vec<Line> {
    vec![
        size!(Fid, "fid", 24),
        place!(Fid, ops, "fid", 16),
        place!(FidOps, close, "fi_ops", 8),
        place!(FidOps, bind, "fi_ops", 16),
        place!(FidOps, control, "fi_ops", 24),
        size!(FidFabric, "fid_fabric", 40),
        place!(FidFabric, ops, "fid_fabric", 24),
        place!(FabricOps, domain, "fi_ops_fabric", 8),
        place!(FabricOps, trywait, "fi_ops_fabric", 40),
        size!(FidDomain, "fid_domain", 40),
        place!(FidDomain, ops, "fid_domain", 24),
        place!(FidDomain, mr, "fid_domain", 32),
        place!(DomainOps, av_open, "fi_ops_domain", 8),
        place!(DomainOps, cq_open, "fi_ops_domain", 16),
        place!(DomainOps, endpoint, "fi_ops_domain", 24),
        place!(DomainOps, query_atomic, "fi_ops_domain", 72),
        place!(MrOps, reg, "fi_ops_mr", 8),
        size!(FidMr, "fid_mr", 40),
        place!(FidMr, mem_desc, "fid_mr", 24),
        place!(FidMr, key, "fid_mr", 32),
        size!(AvAttr, "fi_av_attr", 48),
        place!(AvAttr, kind, "fi_av_attr", type, 0),
        place!(AvAttr, count, "fi_av_attr", 8),
        place!(AvAttr, flags, "fi_av_attr", 40),
        size!(FidAv, "fid_av", 32),
        place!(FidAv, ops, "fid_av", 24),
        place!(AvOps, insert, "fi_ops_av", 8),
        place!(AvOps, straddr, "fi_ops_av", 48),
    ]
}

fn queues() -> Vec<Line> {
    vec![
        size!(CqAttr, "fi_cq_attr", 40),
        place!(CqAttr, format, "fi_cq_attr", 16),
        place!(CqAttr, wait_obj, "fi_cq_attr", 20),
        place!(CqAttr, wait_set, "fi_cq_attr", 32),
        size!(FidCq, "fid_cq", 32),
        place!(FidCq, ops, "fid_cq", 24),
        size!(CqOps, "fi_ops_cq", 64),
        place!(CqOps, read, "fi_ops_cq", 8),
        place!(CqOps, readerr, "fi_ops_cq", 24),
        place!(CqOps, strerror, "fi_ops_cq", 56),
        size!(CqEntry, "fi_cq_msg_entry", 24),
        place!(CqEntry, op_context, "fi_cq_msg_entry", 0),
        place!(CqEntry, flags, "fi_cq_msg_entry", 8),
        place!(CqEntry, len, "fi_cq_msg_entry", 16),
        size!(CqErrEntry, "fi_cq_err_entry", 80),
        place!(CqErrEntry, err, "fi_cq_err_entry", 56),
        place!(CqErrEntry, prov_errno, "fi_cq_err_entry", 60),
        place!(CqErrEntry, err_data_size, "fi_cq_err_entry", 72),
        size!(FidEp, "fid_ep", 80),
        place!(FidEp, cm, "fid_ep", 32),
        place!(FidEp, msg, "fid_ep", 40),
        place!(FidEp, rma, "fid_ep", 48),
        place!(CmOps, getname, "fi_ops_cm", 16),
        place!(MsgOps, recv, "fi_ops_msg", 8),
        place!(MsgOps, send, "fi_ops_msg", 32),
        size!(Context, "fi_context2", 64),
        place!(RmaOps, readmsg, "fi_ops_rma", 24),
        place!(RmaOps, writemsg, "fi_ops_rma", 48),
        size!(Iovec, "iovec", 16),
        place!(Iovec, base, "iovec", iov_base, 0),
        place!(Iovec, len, "iovec", iov_len, 8),
        size!(RmaIov, "fi_rma_iov", 24),
        place!(RmaIov, addr, "fi_rma_iov", 0),
        place!(RmaIov, len, "fi_rma_iov", 8),
        place!(RmaIov, key, "fi_rma_iov", 16),
        size!(MsgRma, "fi_msg_rma", 64),
        place!(MsgRma, desc, "fi_msg_rma", 8),
        place!(MsgRma, addr, "fi_msg_rma", 24),
        place!(MsgRma, rma_iov, "fi_msg_rma", 32),
        place!(MsgRma, context, "fi_msg_rma", 48),
    ]
}

fn atomics() -> Vec<Line> {
    vec![
        size!(AtomicAttr, "fi_atomic_attr", 16),
        place!(AtomicAttr, count, "fi_atomic_attr", 0),
        place!(FidEp, atomic, "fid_ep", 64),
        place!(AtomicOps, writemsg, "fi_ops_atomic", 24),
        place!(AtomicOps, readwritemsg, "fi_ops_atomic", 56),
        place!(AtomicOps, compwritemsg, "fi_ops_atomic", 80),
        size!(Ioc, "fi_ioc", 16),
        place!(Ioc, addr, "fi_ioc", 0),
        place!(Ioc, count, "fi_ioc", 8),
        size!(RmaIoc, "fi_rma_ioc", 24),
        place!(RmaIoc, count, "fi_rma_ioc", 8),
        place!(RmaIoc, key, "fi_rma_ioc", 16),
        size!(MsgAtomic, "fi_msg_atomic", 72),
        place!(MsgAtomic, desc, "fi_msg_atomic", 8),
        place!(MsgAtomic, addr, "fi_msg_atomic", 24),
        place!(MsgAtomic, rma_iov, "fi_msg_atomic", 32),
        place!(MsgAtomic, datatype, "fi_msg_atomic", 48),
        place!(MsgAtomic, op, "fi_msg_atomic", 52),
        place!(MsgAtomic, context, "fi_msg_atomic", 56),
        ("FI_FETCH_ATOMIC", FETCH_ATOMIC, 1 << 58),
        ("FI_COMPARE_ATOMIC", COMPARE_ATOMIC, 1 << 59),
        ("FI_INT8", INT8 as u64, 0),
        ("FI_UINT8", UINT8 as u64, 1),
        ("FI_INT16", INT16 as u64, 2),
        ("FI_UINT16", UINT16 as u64, 3),
        ("FI_INT32", INT32 as u64, 4),
        ("FI_UINT32", UINT32 as u64, 5),
        ("FI_INT64", INT64 as u64, 6),
        ("FI_UINT64", UINT64 as u64, 7),
        ("FI_MIN", MIN as u64, 0),
        ("FI_MAX", MAX as u64, 1),
        ("FI_SUM", SUM as u64, 2),
        ("FI_PROD", PROD as u64, 3),
        ("FI_LOR", LOR as u64, 4),
        ("FI_LAND", LAND as u64, 5),
        ("FI_BOR", BOR as u64, 6),
        ("FI_BAND", BAND as u64, 7),
        ("FI_LXOR", LXOR as u64, 8),
        ("FI_BXOR", BXOR as u64, 9),
        ("FI_ATOMIC_READ", ATOMIC_READ as u64, 10),
        ("FI_ATOMIC_WRITE", ATOMIC_WRITE as u64, 11),
        ("FI_CSWAP", CSWAP as u64, 12),
    ]
}

fn constants() -> Vec<Line> {
    vec![
        ("FI_VERSION(1, 17)", version(1, 17).into(), 0x10011),
        ("FI_MSG", MSG, 2),
        ("FI_RMA", RMA, 4),
        ("FI_ATOMIC", ATOMIC, 16),
        ("FI_READ", READ, 1 << 8),
        ("FI_WRITE", WRITE, 1 << 9),
        ("FI_RECV", RECV, 1 << 10),
        ("FI_SEND", SEND, 1 << 11),
        ("FI_REMOTE_READ", REMOTE_READ, 1 << 12),
        ("FI_REMOTE_WRITE", REMOTE_WRITE, 1 << 13),
        ("FI_COMPLETION", COMPLETION, 1 << 24),
        ("FI_DELIVERY_COMPLETE", DELIVERY_COMPLETE, 1 << 28),
        ("FI_SOURCE", SOURCE, 1 << 57),
        ("FI_CONTEXT", CONTEXT, 1 << 59),
        ("FI_CONTEXT2", CONTEXT2, 1 << 52),
        ("FI_EP_RDM", EP_RDM as u64, 3),
        ("FI_THREAD_SAFE", THREAD_SAFE as u64, 1),
        ("FI_PROGRESS_AUTO", PROGRESS_AUTO as u64, 1),
        ("FI_RM_ENABLED", RM_ENABLED as u64, 2),
        ("FI_AV_TABLE", AV_TABLE as u64, 2),
        ("FI_MR_LOCAL", MR_LOCAL as u64, 1 << 2),
        ("FI_MR_VIRT_ADDR", MR_VIRT_ADDR as u64, 1 << 4),
        ("FI_MR_ALLOCATED", MR_ALLOCATED as u64, 1 << 5),
        ("FI_MR_PROV_KEY", MR_PROV_KEY as u64, 1 << 6),
        ("FI_MR_ENDPOINT", MR_ENDPOINT as u64, 1 << 9),
        ("FI_WAIT_NONE", WAIT_NONE as u64, 0),
        ("FI_WAIT_FD", WAIT_FD as u64, 3),
        ("FI_CQ_FORMAT_MSG", CQ_FORMAT_MSG as u64, 2),
        ("FI_ADDR_UNSPEC", ADDR_UNSPEC, u64::MAX),
        ("FI_GETWAIT", GETWAIT as u64, 5),
        ("FI_ENABLE", ENABLE as u64, 6),
        ("FI_EAGAIN", EAGAIN as u64, 11),
        ("FI_ENODATA", ENODATA as u64, 61),
        ("FI_ENOSYS", ENOSYS as u64, 38),
        ("FI_EAVAIL", EAVAIL as u64, 259),
    ]
}

#[test]
fn all_is_as_it_was_in_the_headers() {
    for (what, ours, expected) in lines() {
        assert_eq!(ours, expected, "{what}");
    }
}

/// Where libfabric-dev and a C compiler are, what the headers say there.
#[test]
fn all_is_as_in_the_headers_here() {
    let folder = tempfile::tempdir().unwrap();
    let [source, program] = ["lines.c", "lines"].map(|name| folder.path().join(name));
    let headers =
        ["fabric", "fi_domain", "fi_endpoint", "fi_eq", "fi_cm", "fi_errno", "fi_rma", "fi_atomic"];
    let includes: String =
        headers.iter().map(|name| format!("#include <rdma/{name}.h>\n")).collect();
    let prints: String = lines()
        .iter()
        .map(|(what, ..)| format!("printf(\"%llu\\n\", (unsigned long long)({what}));\n"))
        .collect();
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n{includes}\
         int main(void) {{\n{prints}return 0;\n}}\n"
    );
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).output();
    let errors = match compiled {
        Ok(output) if output.status.success() => String::new(),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    if errors.contains("rdma/fabric.h") || errors.contains("No such file or directory") {
        println!("all_is_as_in_the_headers_here is skipped: {errors}");
        return;
    }
    assert!(errors.is_empty(), "{errors}");
    let output = Command::new(&program).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let said: Vec<u64> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(said.len(), lines().len());
    for ((what, ours, _), theirs) in lines().into_iter().zip(said) {
        assert_eq!(ours, theirs, "{what}");
    }
}
