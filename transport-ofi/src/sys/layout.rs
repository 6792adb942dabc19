//! Structures and constants of `rdma/fabric.h`, version 1.17 (ABI `FABRIC_1.3`).

use std::ffi::{c_char, c_int, c_void};

pub(super) const MSG: u64 = 1 << 1;
pub(super) const RMA: u64 = 1 << 2;
pub(super) const ATOMIC: u64 = 1 << 4;
pub(super) const EP_RDM: c_int = 3;
pub(super) const PROGRESS_AUTO: c_int = 1;
pub(super) const MR_LOCAL: c_int = 1 << 2;
pub(super) const MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const MR_ALLOCATED: c_int = 1 << 5;
pub(super) const MR_PROV_KEY: c_int = 1 << 6;
pub(super) const MR_ENDPOINT: c_int = 1 << 9;
pub(super) const CONTEXT: u64 = 1 << 59;
pub(super) const ENODATA: c_int = 61;

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
    addr_format: u32,
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
    threading: c_int,
    control_progress: c_int,
    pub(super) data_progress: c_int,
    resource_mgmt: c_int,
    av_type: c_int,
    pub(super) mr_mode: c_int,
}

/// The beginning of `struct fi_fabric_attr`.
#[repr(C)]
pub(super) struct FabricAttr {
    fabric: *mut c_void,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::{DomainAttr, EpAttr, FabricAttr, Info, TxAttr, version};
    use std::mem::{offset_of, size_of};

    /// The numbers are `sizeof` and `offsetof` of Debian's libfabric-dev 1.17.0 on x86-64.
    #[test]
    fn structures_lie_as_in_the_header() {
        assert_eq!(size_of::<Info>(), 120);
        assert_eq!(offset_of!(Info, caps), 8);
        assert_eq!(offset_of!(Info, mode), 16);
        assert_eq!(offset_of!(Info, addr_format), 24);
        assert_eq!(offset_of!(Info, tx_attr), 72);
        assert_eq!(offset_of!(Info, ep_attr), 88);
        assert_eq!(offset_of!(Info, domain_attr), 96);
        assert_eq!(offset_of!(Info, fabric_attr), 104);
        assert_eq!(offset_of!(TxAttr, inject_size), 40);
        assert_eq!(offset_of!(EpAttr, kind), 0);
        assert_eq!(offset_of!(EpAttr, max_msg_size), 16);
        assert_eq!(offset_of!(DomainAttr, name), 8);
        assert_eq!(offset_of!(DomainAttr, data_progress), 24);
        assert_eq!(offset_of!(DomainAttr, mr_mode), 36);
        assert_eq!(offset_of!(FabricAttr, name), 8);
        assert_eq!(offset_of!(FabricAttr, prov_name), 16);
        assert_eq!(version(1, 17), 0x10011);
    }
}
