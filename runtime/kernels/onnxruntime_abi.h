// The part of ONNX Runtime's C interface that this library calls, so that it compiles without ONNX Runtime's header. The table of
// functions only grows, and its order is a promise: places are those of OrtApi, as of version 17 (ONNX Runtime 1.17).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

constexpr uint32_t kVersion = 17;

struct Status;
struct SessionOptions;
struct Domain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct Shape;
struct CustomOp;
struct Api;

enum ErrorCode { kFail = 1, kInvalidArgument = 2 };
enum ElementType { kFloat = 1, kUint8 = 2, kInt8 = 3, kFloat16 = 10, kAnyType = 0 };
enum Characteristic { kRequired = 0, kOptional = 1 };

struct ApiBase {
    const Api* (*get_api)(uint32_t version);
    const char* (*get_version)();
};

// OrtCustomOp up to its fields of version 17.
struct CustomOp {
    uint32_t version;
    void* (*create_without_status)(const CustomOp*, const Api*, const KernelInfo*);
    const char* (*name)(const CustomOp*);
    const char* (*provider)(const CustomOp*);  // null: the CPU
    ElementType (*input_type)(const CustomOp*, size_t);
    size_t (*input_count)(const CustomOp*);
    ElementType (*output_type)(const CustomOp*, size_t);
    size_t (*output_count)(const CustomOp*);
    void (*compute_without_status)(void*, KernelContext*);
    void (*destroy)(void*);
    Characteristic (*input_characteristic)(const CustomOp*, size_t);
    Characteristic (*output_characteristic)(const CustomOp*, size_t);
    int (*input_memory)(const CustomOp*, size_t);
    int (*unused_variadic[4])(const CustomOp*);
    Status* (*create)(const CustomOp*, const Api*, const KernelInfo*, void**);
    Status* (*compute)(void*, KernelContext*);
    void* infer_shape;
    int (*start_version)(const CustomOp*);
    int (*end_version)(const CustomOp*);
};

struct Api {
    void* functions[275];

    template <class Function, class... Arguments>
    auto call(size_t place, Arguments... arguments) const {
        return reinterpret_cast<Function*>(functions[place])(arguments...);
    }
    Status* create_status(ErrorCode code, const char* message) const {
        return call<Status*(ErrorCode, const char*)>(0, code, message);
    }
    void release(Status* status) const { call<void(Status*)>(93, status); }

    Status* create_domain(const char* name, Domain** out) const { return call<Status*(const char*, Domain**)>(26, name, out); }
    Status* add(Domain* domain, const CustomOp* op) const { return call<Status*(Domain*, const CustomOp*)>(27, domain, op); }
    Status* add(SessionOptions* options, Domain* domain) const {
        return call<Status*(SessionOptions*, Domain*)>(28, options, domain);
    }

    Status* data(const Value* value, void** out) const { return call<Status*(const Value*, void**)>(51, value, out); }
    Status* shape(const Value* value, Shape** out) const { return call<Status*(const Value*, Shape**)>(65, value, out); }
    Status* element_type(const Shape* shape, ElementType* out) const {
        return call<Status*(const Shape*, ElementType*)>(60, shape, out);
    }
    Status* dimension_count(const Shape* shape, size_t* out) const { return call<Status*(const Shape*, size_t*)>(61, shape, out); }
    Status* dimensions(const Shape* shape, int64_t* out, size_t count) const {
        return call<Status*(const Shape*, int64_t*, size_t)>(62, shape, out, count);
    }
    Status* element_count(const Shape* shape, size_t* out) const { return call<Status*(const Shape*, size_t*)>(64, shape, out); }
    void release(Shape* shape) const { call<void(Shape*)>(99, shape); }

    Status* attribute(const KernelInfo* info, const char* name, int64_t* out) const {
        return call<Status*(const KernelInfo*, const char*, int64_t*)>(86, info, name, out);
    }
    Status* attribute(const KernelInfo* info, const char* name, char* out, size_t* size) const {
        return call<Status*(const KernelInfo*, const char*, char*, size_t*)>(87, info, name, out, size);
    }
    Status* input_count(const KernelInfo* info, size_t* out) const {
        return call<Status*(const KernelInfo*, size_t*)>(230, info, out);
    }
    Status* constant_input(const KernelInfo* info, size_t index, int* is_constant, const Value** out) const {
        return call<Status*(const KernelInfo*, size_t, int*, const Value**)>(249, info, index, is_constant, out);
    }

    Status* input(const KernelContext* context, size_t index, const Value** out) const {
        return call<Status*(const KernelContext*, size_t, const Value**)>(90, context, index, out);
    }
    Status* output(KernelContext* context, size_t index, const int64_t* sizes, size_t count, Value** out) const {
        return call<Status*(KernelContext*, size_t, const int64_t*, size_t, Value**)>(91, context, index, sizes, count, out);
    }
    // Calls `task` for 0 to `count` - 1 on the session's threads, each of which takes the next one.
    Status* parallel_for(const KernelContext* context, void (*task)(void*, size_t), size_t count, void* data) const {
        return call<Status*(const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>(
            274, context, task, count, size_t{0}, data);
    }
};

}  // namespace ort
