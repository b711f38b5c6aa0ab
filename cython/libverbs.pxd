# <infiniband/verbs.h> of libibverbs, as far as we use it. C declarations alone.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "infiniband/verbs.h" nogil:
    struct ibv_device:
        char name[64]

    struct ibv_context_ops:
        int (*poll_cq)(ibv_cq *cq, int entries, ibv_wc *completions) noexcept
        int (*post_send)(ibv_qp *qp, ibv_send_wr *request, ibv_send_wr **failed) noexcept

    struct ibv_context:
        ibv_context_ops ops
        int async_fd
        int num_comp_vectors

    struct ibv_device_attr:
        uint64_t max_mr_size
        int max_qp
        int max_qp_wr
        int max_sge
        int max_cqe
        int max_mr
        int max_pd
        int max_qp_rd_atom
        int max_qp_init_rd_atom
        int atomic_cap

    struct ibv_port_attr:
        int state
        int max_mtu
        int active_mtu
        int gid_tbl_len
        uint32_t max_msg_sz
        uint16_t lid
        uint8_t link_layer

    union ibv_gid:
        uint8_t raw[16]

    struct ibv_pd:
        pass

    struct ibv_mr:
        uint32_t lkey
        uint32_t rkey

    struct ibv_comp_channel:
        int fd

    struct ibv_cq:
        ibv_context *context

    struct ibv_srq:
        pass

    struct ibv_qp:
        ibv_context *context
        uint32_t qp_num
        int state

    struct ibv_qp_cap:
        uint32_t max_send_wr
        uint32_t max_recv_wr
        uint32_t max_send_sge
        uint32_t max_recv_sge
        uint32_t max_inline_data

    struct ibv_qp_init_attr:
        void *qp_context
        ibv_cq *send_cq
        ibv_cq *recv_cq
        ibv_srq *srq
        ibv_qp_cap cap
        int qp_type
        int sq_sig_all

    struct ibv_global_route:
        ibv_gid dgid
        uint32_t flow_label
        uint8_t sgid_index
        uint8_t hop_limit
        uint8_t traffic_class

    struct ibv_ah_attr:
        ibv_global_route grh
        uint16_t dlid
        uint8_t sl
        uint8_t src_path_bits
        uint8_t static_rate
        uint8_t is_global
        uint8_t port_num

    struct ibv_qp_attr:
        int qp_state
        int path_mtu
        uint32_t rq_psn
        uint32_t sq_psn
        uint32_t dest_qp_num
        unsigned int qp_access_flags
        ibv_ah_attr ah_attr
        uint16_t pkey_index
        uint8_t max_rd_atomic
        uint8_t max_dest_rd_atomic
        uint8_t min_rnr_timer
        uint8_t port_num
        uint8_t timeout
        uint8_t retry_cnt
        uint8_t rnr_retry

    struct ibv_sge:
        uint64_t addr
        uint32_t length
        uint32_t lkey

    struct ibv_send_wr:
        uint64_t wr_id
        ibv_send_wr *next
        ibv_sge *sg_list
        int num_sge
        int opcode
        unsigned int send_flags

    struct ibv_wc:
        uint64_t wr_id
        int status
        int opcode
        uint32_t vendor_err
        uint32_t byte_len

    int IBV_QPT_RC
    int IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR
    int IBV_QP_STATE, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_PATH_MTU
    int IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER
    int IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_SQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC
    int IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC
    int IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD
    int IBV_SEND_SIGNALED, IBV_SEND_INLINE, IBV_SEND_FENCE
    int IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR
    int IBV_PORT_ACTIVE
    int IBV_ATOMIC_NONE

    int IBV_FORK_UNNEEDED
    int ibv_is_fork_initialized()
    int ibv_fork_init()
    ibv_device **ibv_get_device_list(int *count)
    void ibv_free_device_list(ibv_device **devices)
    const char *ibv_get_device_name(ibv_device *device)
    ibv_context *ibv_open_device(ibv_device *device)
    int ibv_close_device(ibv_context *context)
    int ibv_query_device(ibv_context *context, ibv_device_attr *attributes)
    int ibv_query_port(ibv_context *context, uint8_t port, ibv_port_attr *attributes)
    int ibv_query_gid(ibv_context *context, uint8_t port, int index, ibv_gid *gid)
    ibv_pd *ibv_alloc_pd(ibv_context *context)
    int ibv_dealloc_pd(ibv_pd *pd)
    ibv_mr *ibv_reg_mr(ibv_pd *pd, void *address, size_t length, int access)
    int ibv_dereg_mr(ibv_mr *mr)
    ibv_comp_channel *ibv_create_comp_channel(ibv_context *context)
    int ibv_destroy_comp_channel(ibv_comp_channel *channel)
    ibv_cq *ibv_create_cq(ibv_context *context, int entries, void *cq_context, ibv_comp_channel *channel, int vector)
    int ibv_destroy_cq(ibv_cq *cq)
    int ibv_get_cq_event(ibv_comp_channel *channel, ibv_cq **cq, void **cq_context)
    void ibv_ack_cq_events(ibv_cq *cq, unsigned int count)
    int ibv_req_notify_cq(ibv_cq *cq, int solicited_only)
    int ibv_poll_cq(ibv_cq *cq, int entries, ibv_wc *completions)
    ibv_qp *ibv_create_qp(ibv_pd *pd, ibv_qp_init_attr *attributes)
    int ibv_modify_qp(ibv_qp *qp, ibv_qp_attr *attributes, int mask)
    int ibv_query_qp(ibv_qp *qp, ibv_qp_attr *attributes, int mask, ibv_qp_init_attr *made)
    int ibv_destroy_qp(ibv_qp *qp)
    int ibv_post_send(ibv_qp *qp, ibv_send_wr *request, ibv_send_wr **failed)
    const char *ibv_wc_status_str(int status)

# The union of a work request has no name that Cython could use.
cdef extern from * nogil:
    """
    #include <infiniband/verbs.h>
    static inline void fp_aim_rdma(struct ibv_send_wr *request, uint64_t address, uint32_t rkey) {
        request->wr.rdma.remote_addr = address;
        request->wr.rdma.rkey = rkey;
    }
    static inline void fp_aim_atomic(struct ibv_send_wr *request, uint64_t address, uint32_t rkey,
                                     uint64_t compare_add, uint64_t swap) {
        request->wr.atomic.remote_addr = address;
        request->wr.atomic.rkey = rkey;
        request->wr.atomic.compare_add = compare_add;
        request->wr.atomic.swap = swap;
    }
    """
    void aim_rdma "fp_aim_rdma"(ibv_send_wr *request, uint64_t address, uint32_t rkey)
    void aim_atomic "fp_aim_atomic"(ibv_send_wr *request, uint64_t address, uint32_t rkey, uint64_t compare_add,
                                    uint64_t swap)
