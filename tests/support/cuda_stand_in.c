/* The functions of CUDA's libraries that ONNX Runtime's CUDA provider needs an answer of while it opens a graph: one device, whose
   memory is the machine's. cuda_placement.py adds all others, which return 0, and builds the libraries. Nothing can be computed. */

#include <stdlib.h>
#include <string.h>

enum { FINE = 0, CAPABILITY_MAJOR = 9, CAPABILITY_MINOR = 0, VERSION = 13000, MAJOR_ATTRIBUTE = 75, MINOR_ATTRIBUTE = 76 };
static const size_t MEMORY = (size_t)80 << 30;

/* The beginning of cudaDeviceProp as in CUDA 13's driver_types.h. */
struct properties {
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t total_memory, shared_memory_per_block;
    int registers_per_block, warp_size;
    size_t memory_pitch;
    int threads_per_block, threads_dim[3], grid_size[3];
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int multiprocessors;
};
enum { PROPERTIES_SIZE = 700 }; /* bytes of the whole struct that are surely there */

static int allocate(void **pointer, size_t size) { *pointer = malloc(size ? size : 1); return *pointer ? FINE : 2; }
static int handle(void **made) { return allocate(made, 64); }

int cudaMalloc(void **pointer, size_t size) { return allocate(pointer, size); }
int cudaMallocAsync(void **pointer, size_t size, void *stream) { return allocate(pointer, size); }
int cudaMallocHost(void **pointer, size_t size) { return allocate(pointer, size); }
int cudaHostAlloc(void **pointer, size_t size, unsigned flags) { return allocate(pointer, size); }
int cudaFree(void *pointer) { free(pointer); return FINE; }
int cudaFreeHost(void *pointer) { free(pointer); return FINE; }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { memcpy(to, from, size); return FINE; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) { memcpy(to, from, size); return FINE; }
int cudaMemset(void *pointer, int value, size_t size) { memset(pointer, value, size); return FINE; }
int cudaMemsetAsync(void *pointer, int value, size_t size, void *stream) { memset(pointer, value, size); return FINE; }
int cudaMemGetInfo(size_t *available, size_t *total) { *available = *total = MEMORY; return FINE; }

int cudaGetDeviceCount(int *count) { *count = 1; return FINE; }
int cudaGetDevice(int *device) { *device = 0; return FINE; }
int cudaRuntimeGetVersion(int *version) { *version = VERSION; return FINE; }
int cudaDriverGetVersion(int *version) { *version = VERSION; return FINE; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == MAJOR_ATTRIBUTE ? CAPABILITY_MAJOR : attribute == MINOR_ATTRIBUTE ? CAPABILITY_MINOR : 1024;
    return FINE;
}
int cudaGetDeviceProperties(struct properties *found, int device) {
    memset(found, 0, PROPERTIES_SIZE);
    strcpy(found->name, "stand-in");
    found->total_memory = MEMORY;
    found->shared_memory_per_block = 49152;
    found->registers_per_block = 65536;
    found->warp_size = 32;
    found->threads_per_block = found->threads_dim[0] = found->threads_dim[1] = 1024;
    found->threads_dim[2] = 64;
    found->grid_size[0] = 2147483647;
    found->grid_size[1] = found->grid_size[2] = 65535;
    found->major = CAPABILITY_MAJOR;
    found->minor = CAPABILITY_MINOR;
    found->multiprocessors = 132;
    return FINE;
}
const char *cudaGetErrorString(int error) { return "stand-in"; }
const char *cudaGetErrorName(int error) { return "stand-in"; }
void **__cudaRegisterFatBinary(void *binary) { static void *registered; return &registered; }

int cudaStreamCreate(void **stream) { return handle(stream); }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return handle(stream); }
int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) { return handle(stream); }
int cudaEventCreate(void **event) { return handle(event); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return handle(event); }
int cublasCreate_v2(void **made) { return handle(made); }
int cublasLtCreate(void **made) { return handle(made); }
