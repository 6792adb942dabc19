//! Structures and constants of `rdma/fabric.h`, `fi_domain.h`, `fi_endpoint.h`, `fi_eq.h` and
//! `fi_cm.h`, version 1.17 (ABI `FABRIC_1.3`). What the headers define as inline functions are
//! calls of the tables of functions (`*Ops`) that each object has.

use std::ffi::{c_char, c_int, c_void};

pub(super) const MSG: u64 = 1 << 1;
pub(super) const RMA: u64 = 1 << 2;
pub(super) const ATOMIC: u64 = 1 << 4;
pub(super) const READ: u64 = 1 << 8;
pub(super) const WRITE: u64 = 1 << 9;
pub(super) const RECV: u64 = 1 << 10;
pub(super) const SEND: u64 = 1 << 11;
pub(super) const REMOTE_READ: u64 = 1 << 12;
pub(super) const REMOTE_WRITE: u64 = 1 << 13;
pub(super) const COMPLETION: u64 = 1 << 24;
pub(super) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(super) const SOURCE: u64 = 1 << 57;
pub(super) const FETCH_ATOMIC: u64 = 1 << 58;
pub(super) const COMPARE_ATOMIC: u64 = 1 << 59;
pub(super) const CONTEXT: u64 = 1 << 59;
pub(super) const CONTEXT2: u64 = 1 << 52;
pub(super) const EP_RDM: c_int = 3;
pub(super) const THREAD_SAFE: c_int = 1;
pub(super) const PROGRESS_AUTO: c_int = 1;
pub(super) const RM_ENABLED: c_int = 2;
pub(super) const AV_TABLE: c_int = 2;
pub(super) const MR_LOCAL: c_int = 1 << 2;
pub(super) const MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const MR_ALLOCATED: c_int = 1 << 5;
pub(super) const MR_PROV_KEY: c_int = 1 << 6;
pub(super) const MR_ENDPOINT: c_int = 1 << 9;
pub(super) const WAIT_NONE: c_int = 0;
pub(super) const WAIT_FD: c_int = 3;
pub(super) const CQ_FORMAT_MSG: c_int = 2;
pub(super) const ADDR_UNSPEC: u64 = u64::MAX;
/// `enum fi_datatype`.
pub(super) const INT8: c_int = 0;
pub(super) const UINT8: c_int = 1;
pub(super) const INT16: c_int = 2;
pub(super) const UINT16: c_int = 3;
pub(super) const INT32: c_int = 4;
pub(super) const UINT32: c_int = 5;
pub(super) const INT64: c_int = 6;
pub(super) const UINT64: c_int = 7;
/// `enum fi_op`.
pub(super) const MIN: c_int = 0;
pub(super) const MAX: c_int = 1;
pub(super) const SUM: c_int = 2;
pub(super) const PROD: c_int = 3;
pub(super) const LOR: c_int = 4;
pub(super) const LAND: c_int = 5;
pub(super) const BOR: c_int = 6;
pub(super) const BAND: c_int = 7;
pub(super) const LXOR: c_int = 8;
pub(super) const BXOR: c_int = 9;
pub(super) const ATOMIC_READ: c_int = 10;
pub(super) const ATOMIC_WRITE: c_int = 11;
pub(super) const CSWAP: c_int = 12;
/// Commands of `fi_control`.
pub(super) const GETWAIT: c_int = 5;
pub(super) const ENABLE: c_int = 6;
/// Errors, as positive numbers; the first two are those of the system.
pub(super) const EAGAIN: c_int = 11;
pub(super) const ENODATA: c_int = 61;
pub(super) const ENOSYS: c_int = 38;
pub(super) const EAVAIL: c_int = 259;

/// `FI_VERSION(major, minor)`.
pub(super) const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// `struct fi_info`.
#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    src_addrlen: usize,
    dest_addrlen: usize,
    src_addr: *mut c_void,
    dest_addr: *mut c_void,
    handle: *mut c_void,
    pub(super) tx_attr: *mut TxAttr,
    rx_attr: *mut c_void,
    pub(super) ep_attr: *mut EpAttr,
    pub(super) domain_attr: *mut DomainAttr,
    pub(super) fabric_attr: *mut FabricAttr,
    nic: *mut c_void,
}

/// The beginning of `struct fi_tx_attr`: libfabric allocates it, whatever its length.
#[repr(C)]
pub(super) struct TxAttr {
    caps: u64,
    mode: u64,
    op_flags: u64,
    msg_order: u64,
    comp_order: u64,
    pub(super) inject_size: usize,
}

/// The beginning of `struct fi_ep_attr`.
#[repr(C)]
pub(super) struct EpAttr {
    pub(super) kind: c_int,
    protocol: u32,
    protocol_version: u32,
    pub(super) max_msg_size: usize,
}

/// The beginning of `struct fi_domain_attr`.
#[repr(C)]
pub(super) struct DomainAttr {
    domain: *mut c_void,
    pub(super) name: *mut c_char,
    pub(super) threading: c_int,
    control_progress: c_int,
    pub(super) data_progress: c_int,
    pub(super) resource_mgmt: c_int,
    av_type: c_int,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
}

/// The beginning of `struct fi_fabric_attr`.
#[repr(C)]
pub(super) struct FabricAttr {
    fabric: *mut c_void,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
}

/// `struct fid`: what every object begins with.
#[repr(C)]
pub(super) struct Fid {
    fclass: usize,
    context: *mut c_void,
    pub(super) ops: *const FidOps,
}

/// The beginning of `struct fi_ops`.
#[repr(C)]
pub(super) struct FidOps {
    size: usize,
    pub(super) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(super) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(super) control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

/// `struct fid_fabric`.
#[repr(C)]
pub(super) struct FidFabric {
    fid: Fid,
    pub(super) ops: *const FabricOps,
    api_version: u32,
}

/// The beginning of `struct fi_ops_fabric`.
#[repr(C)]
pub(super) struct FabricOps {
    size: usize,
    pub(super) domain:
        unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, *mut c_void) -> c_int,
    passive_ep: *const c_void,
    eq_open: *const c_void,
    wait_open: *const c_void,
    pub(super) trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
}

/// `struct fid_domain`.
#[repr(C)]
pub(super) struct FidDomain {
    fid: Fid,
    pub(super) ops: *const DomainOps,
    pub(super) mr: *const MrOps,
}

/// The beginning of `struct fi_ops_domain`.
#[repr(C)]
pub(super) struct DomainOps {
    pub(super) size: usize,
    pub(super) av_open:
        unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
    pub(super) cq_open:
        unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
    pub(super) endpoint:
        unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
    scalable_ep: *const c_void,
    cntr_open: *const c_void,
    poll_open: *const c_void,
    stx_ctx: *const c_void,
    srx_ctx: *const c_void,
    pub(super) query_atomic:
        unsafe extern "C" fn(*mut FidDomain, c_int, c_int, *mut AtomicAttr, u64) -> c_int,
}

/// `struct fi_atomic_attr`.
#[repr(C)]
pub(super) struct AtomicAttr {
    pub(super) count: usize,
    pub(super) size: usize,
}

/// The beginning of `struct fi_ops_mr`.
#[repr(C)]
pub(super) struct MrOps {
    size: usize,
    pub(super) reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        *mut c_void,
    ) -> c_int,
}

/// `struct fid_mr`.
#[repr(C)]
pub(super) struct FidMr {
    fid: Fid,
    pub(super) mem_desc: *mut c_void,
    pub(super) key: u64,
}

/// `struct fi_av_attr`.
#[repr(C)]
pub(super) struct AvAttr {
    pub(super) kind: c_int,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
}

/// `struct fid_av`.
#[repr(C)]
pub(super) struct FidAv {
    fid: Fid,
    pub(super) ops: *const AvOps,
}

/// The beginning of `struct fi_ops_av`.
#[repr(C)]
pub(super) struct AvOps {
    size: usize,
    pub(super) insert:
        unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
    insertsvc: *const c_void,
    insertsym: *const c_void,
    remove: *const c_void,
    lookup: *const c_void,
    pub(super) straddr:
        unsafe extern "C" fn(*mut FidAv, *const c_void, *mut c_char, *mut usize) -> *const c_char,
}

/// `struct fi_cq_attr`.
#[repr(C)]
pub(super) struct CqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: c_int,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: c_int,
    pub(super) wait_set: *mut c_void,
}

/// `struct fid_cq`.
#[repr(C)]
pub(super) struct FidCq {
    fid: Fid,
    pub(super) ops: *const CqOps,
}

/// `struct fi_ops_cq`.
#[repr(C)]
pub(super) struct CqOps {
    size: usize,
    pub(super) read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize,
    readfrom: *const c_void,
    pub(super) readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    sread: *const c_void,
    sreadfrom: *const c_void,
    signal: *const c_void,
    pub(super) strerror:
        unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `struct fi_cq_msg_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CqEntry {
    pub(super) op_context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
}

/// `struct fi_cq_err_entry`.
#[repr(C)]
pub(super) struct CqErrEntry {
    pub(super) op_context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
}

/// `struct fid_ep`.
#[repr(C)]
pub(super) struct FidEp {
    fid: Fid,
    ops: *const c_void,
    pub(super) cm: *const CmOps,
    pub(super) msg: *const MsgOps,
    pub(super) rma: *const RmaOps,
    tagged: *const c_void,
    pub(super) atomic: *const AtomicOps,
    collective: *const c_void,
}

/// The beginning of `struct fi_ops_cm`.
#[repr(C)]
pub(super) struct CmOps {
    size: usize,
    setname: *const c_void,
    pub(super) getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

/// The beginning of `struct fi_ops_msg`.
#[repr(C)]
pub(super) struct MsgOps {
    size: usize,
    pub(super) recv: unsafe extern "C" fn(
        *mut FidEp,
        *mut c_void,
        usize,
        *mut c_void,
        u64,
        *mut c_void,
    ) -> isize,
    recvv: *const c_void,
    recvmsg: *const c_void,
    pub(super) send: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        *mut c_void,
    ) -> isize,
}

/// The beginning of `struct fi_ops_rma`.
#[repr(C)]
pub(super) struct RmaOps {
    size: usize,
    read: *const c_void,
    readv: *const c_void,
    pub(super) readmsg: RmaMsg,
    write: *const c_void,
    writev: *const c_void,
    pub(super) writemsg: RmaMsg,
}

pub(super) type RmaMsg = unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize;

/// The beginning of `struct fi_ops_atomic`.
#[repr(C)]
pub(super) struct AtomicOps {
    size: usize,
    write: *const c_void,
    writev: *const c_void,
    pub(super) writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, u64) -> isize,
    inject: *const c_void,
    readwrite: *const c_void,
    readwritev: *const c_void,
    pub(super) readwritemsg: unsafe extern "C" fn(
        *mut FidEp,
        *const MsgAtomic,
        *mut Ioc,
        *mut *mut c_void,
        usize,
        u64,
    ) -> isize,
    compwrite: *const c_void,
    compwritev: *const c_void,
    pub(super) compwritemsg: unsafe extern "C" fn(
        *mut FidEp,
        *const MsgAtomic,
        *const Ioc,
        *mut *mut c_void,
        usize,
        *mut Ioc,
        *mut *mut c_void,
        usize,
        u64,
    ) -> isize,
}

/// `struct iovec`.
#[repr(C)]
pub(super) struct Iovec {
    pub(super) base: *mut c_void,
    pub(super) len: usize,
}

/// `struct fi_rma_iov`.
#[repr(C)]
pub(super) struct RmaIov {
    pub(super) addr: u64,
    pub(super) len: usize,
    pub(super) key: u64,
}

/// `struct fi_msg_rma`.
#[repr(C)]
pub(super) struct MsgRma {
    pub(super) msg_iov: *const Iovec,
    pub(super) desc: *mut *mut c_void,
    pub(super) iov_count: usize,
    pub(super) addr: u64,
    pub(super) rma_iov: *const RmaIov,
    pub(super) rma_iov_count: usize,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

/// `struct fi_ioc`.
#[repr(C)]
pub(super) struct Ioc {
    pub(super) addr: *mut c_void,
    pub(super) count: usize,
}

/// `struct fi_rma_ioc`.
#[repr(C)]
pub(super) struct RmaIoc {
    pub(super) addr: u64,
    pub(super) count: usize,
    pub(super) key: u64,
}

/// `struct fi_msg_atomic`.
#[repr(C)]
pub(super) struct MsgAtomic {
    pub(super) msg_iov: *const Ioc,
    pub(super) desc: *mut *mut c_void,
    pub(super) iov_count: usize,
    pub(super) addr: u64,
    pub(super) rma_iov: *const RmaIoc,
    pub(super) rma_iov_count: usize,
    pub(super) datatype: c_int,
    pub(super) op: c_int,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

/// `struct fi_context2`: room of a provider's own for an operation in flight.
#[repr(C)]
pub(super) struct Context {
    internal: [*mut c_void; 8],
}

#[cfg(test)]
#[path = "pretended.rs"]
pub(crate) mod pretended;
#[cfg(all(test, target_pointer_width = "64"))]
#[path = "layout_tests.rs"]
mod tests;
